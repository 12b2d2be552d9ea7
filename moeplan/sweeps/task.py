"""One plan of a sweep, in a worker: text and bytes in, bytes out.

A worker needs the base install alone, and no store. What ends in a refusal is an answer, too.
"""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeplan.service.planning import plan_of
from moeplan.service.problems import problem, problem_of
from planner.documents import (
    CostProfile,
    Hardware,
    ModelSpec,
    ProfileIndex,
    RoutingTrace,
    canonical_json,
    parse_document,
    to_json,
)
from planner.profiles import Profile, assemble
from planner.routing import read_arrays
from solvers.errors import MoeplanError

__all__ = [
    "ATTEMPTS",
    "CAP_SECONDS",
    "ONE_THREAD",
    "Answers",
    "Packed",
    "Task",
    "answer",
    "died",
    "packed_of",
]

ATTEMPTS = 3
"""A pair that so many workers died of is given up."""
CAP_SECONDS = 3600.0
"""Wall clock of one plan. Far beyond what its counted work takes, so that the same inputs give the
same plan, however busy the machine is."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment of workers: there are as many as cores, and sums must not depend on threads."""


@dataclass(frozen=True)
class Packed:
    """A profile as it travels.

    Attributes
    ----------
    digest
        Hash of its index, by which the store knows it.
    parts
        JSON texts of index, hardware, model, costs and routing.
    arrays
        Contents of ``routing.npz``.
    """

    digest: str
    parts: tuple[str, str, str, str, str]
    arrays: bytes


@dataclass(frozen=True, eq=False)
class Task:
    """What an engine carries out.

    Attributes
    ----------
    index
        Of the pair.
    packed
        Its profile.
    inputs
        Of the service's job for the same plan.
    """

    index: int
    packed: Packed
    inputs: dict[str, Any]


Answers = Iterator[tuple[Task, dict[str, Any]]]
"""Each task with ``plan``, a document, or ``problem``, a problem document."""


def packed_of(profile: Profile, digest: str, arrays: bytes) -> Packed:
    """A profile, packed; ``arrays`` are its ``trace_bytes``."""
    documents = (profile.index, profile.hardware, profile.model, profile.costs, profile.routing)
    index, hardware, model, costs, routing = (canonical_json(to_json(one)) for one in documents)
    return Packed(digest, (index, hardware, model, costs, routing), arrays)


def answer(packed: Packed, inputs: dict[str, Any]) -> bytes:
    """Plan once.

    Parameters
    ----------
    packed
        The profile.
    inputs
        Of the service's job for the same plan.

    Returns
    -------
    bytes
        JSON: ``plan``, a document, or ``problem``, a problem document.
    """
    try:
        made = plan_of(_unpacked(packed), inputs, cap_seconds=CAP_SECONDS)
        said = {"plan": to_json(made)}
    except MoeplanError as error:
        said = {"problem": problem_of(error)}
    except MemoryError:
        said = {"problem": problem(500, "memory", "Too large", "the worker's memory is too small")}
    except Exception as error:  # noqa: BLE001 - a bug ends one pair, told with its place, not all
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        detail = f"a bug in moeplan: {type(error).__name__} at {where}: {error}"
        said = {"problem": problem(500, "internal", "Internal error", detail)}
    return json.dumps(said).encode()


def died(reason: str) -> dict[str, Any]:
    """The answer for a pair whose workers died."""
    detail = f"its worker died {ATTEMPTS} times ({reason}): it may need more memory than there is"
    return {"problem": problem(500, "worker", "Worker died", detail)}


@functools.lru_cache(maxsize=2)
def _unpacked(packed: Packed) -> Profile:
    index, hardware, model, costs, routing = (json.loads(part) for part in packed.parts)
    trace = parse_document(RoutingTrace, routing, "routing")
    return assemble(
        Profile(
            # as a worker of the service names it
            Path(f"profile-{packed.digest}"),
            parse_document(ProfileIndex, index, "profile"),
            parse_document(Hardware, hardware, "hardware"),
            parse_document(ModelSpec, model, "model"),
            parse_document(CostProfile, costs, "costs"),
            trace,
            read_arrays(trace, packed.arrays, "arrays", "routing"),
        )
    )
