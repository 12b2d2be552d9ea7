"""Level (a): which n and b to look at."""

from __future__ import annotations

from planner.attention import attention_ns
from planner.candidate import Candidate
from planner.documents import Workload
from planner.encode import Encoding
from planner.forms import with_forms
from planner.kv import Below, Place, kv_places
from planner.objectives import Objective
from planner.profiles import Profile
from planner.scenarios import (
    Sequences,
    split_sequences,
)
from planner.smallest import CHUNK_BYTES, smallest_capacity_of

__all__ = ["batch_sizes", "candidates", "group_sizes"]

_MOST_STAGES = 512
"""Of a pass, where each batch of a layer is one: what searching and bounding take grows with it."""


def group_sizes(requests: int) -> list[int]:
    """Sequences of a group: all requests, or an equal share of them; the largest first."""
    parts = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024]
    sizes = {-(-requests // part) for part in parts if part <= requests} | {1}
    return sorted(sizes, reverse=True)


def batch_sizes(group: int) -> list[int]:
    """Sequences of a batch in a group."""
    return sorted({-(-group // (1 << power)) for power in range(group.bit_length() + 1)})


def candidates(
    profile: Profile,
    workload: Workload,
    memory_bytes: int,
    seed: int,
    objective: Objective,
    kv: Place = "auto",
) -> list[Candidate]:
    """All n and b that fit: for each group size the batch sizes whose attention is fastest and
    whose workspace is least.

    With ``kv`` ``auto`` those are looked at, too, whose keys and values lie below: of groups for
    which they would take more than half of the budget, and of all groups where nothing else fits.
    """
    sequences = Sequences.of(profile.arrays, profile.routing.experts)
    split = split_sequences(sequences.count, seed)
    groups = group_sizes(workload.requests)
    found: list[Encoding] = []
    places = kv_places(profile.model, profile.hardware.device, kv)
    if None in places:
        for group in groups:
            found += _of_group(profile, workload, memory_bytes, group, None)
    on_device = bool(found)
    for place in (place for place in places if place is not None):
        for group in groups:
            if on_device and 2 * _kv(profile, workload, group) <= memory_bytes:
                break  # groups only become smaller
            found += _of_group(profile, workload, memory_bytes, group, place)
    return [Candidate(one, sequences, split, seed, objective) for one in found]


def _kv(profile: Profile, workload: Workload, group: int) -> int:
    """Bytes of a group's keys and values in all layers."""
    return Encoding(profile, workload, 1, group, 0, CHUNK_BYTES[0], "below").kept.all_bytes


def _of_group(
    profile: Profile, workload: Workload, memory_bytes: int, group: int, kv: Below
) -> list[Encoding]:
    chosen: dict[object, Encoding] = {}
    whole = Encoding(profile, workload, 1, group, memory_bytes, CHUNK_BYTES[0], kv)
    for view in with_forms(whole):
        fitting: list[tuple[int, int, Encoding]] = []
        for batch in batch_sizes(group):
            encoding = _fitting(view, workload, memory_bytes, (-(-group // batch), batch), kv)
            if encoding is not None:
                # with two slots for what is copied of keys and values
                taken = 2 * encoding.kept.room_bytes(0) - encoding.capacity_bytes
                fitting.append((attention_ns(encoding), taken, encoding))
        best = []
        for ranked in ([(a, m, e) for a, m, e in fitting], [(m, a, e) for a, m, e in fitting]):
            best += sorted(ranked, key=lambda entry: entry[:2])[:1]
        if kv == "batches":  # between slots that are small and copies that are few
            best += fitting[len(fitting) // 2 :][:1]
        chosen |= {(view.forms, one.batch_size): one for _, _, one in best}
    return list(chosen.values())


def _fitting(
    profile: Profile, workload: Workload, memory_bytes: int, shape: tuple[int, int], kv: Below
) -> Encoding | None:
    for chunk in CHUNK_BYTES:
        encoding = Encoding(profile, workload, *shape, memory_bytes, chunk, kv)
        if kv == "batches" and encoding.grid.stages > _MOST_STAGES:
            return None
        if encoding.capacity_bytes >= smallest_capacity_of(encoding):
            return encoding
    return None
