"""Where a policy has keys and values: what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator

from planner.documents import Asked, Policy
from solvers.checker import Violation
from solvers.counting import counted

__all__ = ["PASSES_AHEAD", "check_asked_place", "check_batches", "kv_regions"]

PASSES_AHEAD = 2
"""Copies run at most one pass ahead, so that no unit is ever held twice for one pass."""


def check_batches(policy: Policy) -> Iterator[Violation]:
    """All violations of copying each batch's keys and values by themselves, or of its fields where
    nothing is copied so."""
    count = policy.n_batches
    stays = [len(set(layer.kv_resident)) for layer in policy.layers]
    if policy.kv != "batches":
        if policy.kv_slots is not None or any(stays):
            message = "slots or residents for batches whose keys and values are not copied alone"
            yield Violation("kv_slots", "policy.kv_slots", message)
        return
    for index, layer in enumerate(policy.layers):
        where = f"policy.layers.{index}"
        if list(layer.kv_resident) != sorted(set(layer.kv_resident)):
            message = "batches whose keys and values stay do not ascend"
            yield Violation("kv_resident", where, message)
        if max(layer.kv_resident, default=0) >= count:
            message = f"keys and values of batch {max(layer.kv_resident)} stay, of only {count}"
            yield Violation("kv_resident", where, message)
        if not layer.dense_resident:
            message = "batches' keys and values are copied, and the dense part is not resident"
            yield Violation("kv_dense", where, message)
        if layer.predictor != "plan":
            message = "a predictor, where keys and values of batches are copied by themselves"
            yield Violation("predictor", where, message)
        if layer.raw:
            message = "experts as they are, where keys and values of batches are copied"
            yield Violation("raw", where, message)
    streams, slots = any(one < count for one in stays), policy.kv_slots
    if slots is None or (slots < 1 and streams):
        message = "keys and values of batches are copied, but have no slot"
        yield Violation("kv_slots", "policy.kv_slots", message)
        return
    most = PASSES_AHEAD * len(stays) * count if streams else 0
    if slots > most:
        message = f"{counted(slots, 'slot')}, of which {most:,} could ever be used"
        yield Violation("kv_slots", "policy.kv_slots", message)


def kv_regions(policy: Policy) -> int:
    """How many regions of device memory hold nothing but keys and values."""
    if policy.kv == "batches":
        return policy.start_slots + sum(len(layer.kv_resident) for layer in policy.layers)
    return sum(layer.dense_resident or policy.kv is None for layer in policy.layers)


def check_asked_place(asked: Asked, policy: Policy) -> Iterator[Violation]:
    """Where keys and values were to lie against where they do."""
    wanted = {"device": None, "below": "below", "batches": "batches"}
    if asked.kv in wanted and wanted[asked.kv] != policy.kv:
        message = f"keys and values were to lie {asked.kv}, and do not"
        yield Violation("asked", "asked.kv", message)
