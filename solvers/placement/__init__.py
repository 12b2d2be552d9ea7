"""Items on many devices: which device holds which copies.

``problem`` is the value, its check and its figures; ``rules`` what engines do today; ``search`` and
``exact`` what beats them; ``choose`` which of these, by scenarios that they have not seen;
``bounds`` what nobody can beat; ``traffic`` what moves between devices.
"""

__all__: list[str] = []
