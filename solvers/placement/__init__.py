"""Items on many devices: which device holds which copies.

``problem`` is the value, its check and its figures; ``rules`` what engines do today; ``search`` and
``exact`` what beats them; ``bounds`` what nobody can; ``traffic`` what moves between devices.
"""

from solvers.placement.bounds import stage_bounds
from solvers.placement.exact import ENGINES, Placed, solve_exactly
from solvers.placement.problem import (
    Balance,
    Placement,
    PlacementProblem,
    balance,
    check_placement,
    fullest,
)
from solvers.placement.rules import RULES
from solvers.placement.search import search
from solvers.placement.traffic import relabel, traffic

__all__ = [
    "ENGINES",
    "RULES",
    "Balance",
    "Placed",
    "Placement",
    "PlacementProblem",
    "balance",
    "check_placement",
    "fullest",
    "relabel",
    "search",
    "solve_exactly",
    "stage_bounds",
    "traffic",
]
