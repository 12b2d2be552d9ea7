"""Items on many devices: which device holds which copies.

``problem`` is the value, its check and its figures; ``rules`` what engines do today; ``search`` and
``exact`` what beats them; ``bounds`` what nobody can; ``traffic`` what moves between devices.
"""

__all__: list[str] = []
