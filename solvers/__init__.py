"""Tasks, channels, memories and scenarios in integers: no models, no torch.

``problem`` with its ``scenarios`` and ``outcome`` are what goes in and comes out, ``registry`` the
table of back ends (one file each), ``replay`` the runtime's rules on a virtual clock,
``relaxation`` the bounds, ``checker`` the independent check of every schedule, ``errors`` the error
tree of the whole program.
"""

__all__: list[str] = []
