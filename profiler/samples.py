"""Raw samples: what the events of benches say, by operation kind and size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from planner.documents import Event

__all__ = ["PassSamples", "add_pass"]

_BY_ROWS = ("embed", "router", "dense_mlp", "shared_expert", "expert", "combine", "sample")


def _lists() -> defaultdict[tuple[str, int], list[int]]:
    return defaultdict(list)


def _grid() -> defaultdict[tuple[int, int], list[int]]:
    return defaultdict(list)


@dataclass(slots=True)
class PassSamples:
    """Durations in ns.

    Attributes
    ----------
    by_rows
        By operation kind and rows.
    decode, prefill
        Attention, by (sequences of a batch, context) and by (sequences of a batch, prompt tokens).
        With an encoder, ``decode`` is a decoder's to its own tokens.
    cross_decode, cross_prefill
        A decoder's attention to its prompts, both by (sequences of a batch, prompt tokens).
    """

    by_rows: defaultdict[tuple[str, int], list[int]] = field(default_factory=_lists)
    decode: defaultdict[tuple[int, int], list[int]] = field(default_factory=_grid)
    prefill: defaultdict[tuple[int, int], list[int]] = field(default_factory=_grid)
    cross_decode: defaultdict[tuple[int, int], list[int]] = field(default_factory=_grid)
    cross_prefill: defaultdict[tuple[int, int], list[int]] = field(default_factory=_grid)

    def rows(self, kind: str) -> dict[int, list[int]]:
        """Durations of one kind by rows."""
        return {rows: values for (name, rows), values in self.by_rows.items() if name == kind}


def add_pass(
    samples: PassSamples,
    events: Iterable[Event],
    *,
    batch_size: int,
    prompt_tokens: int | None,
    context: int,
    head_tiles: int,
    expert_rows: frozenset[int],
    encoder: int = 0,
) -> None:
    """Take one pass's events into ``samples``.

    Parameters
    ----------
    samples
        Where they go.
    events
        Of one pass; only those on the compute channel count, and a host's experts.
    batch_size
        Sequences of each batch.
    prompt_tokens, context
        Tokens of each sequence in a prefill pass, None in decode; positions seen in decode.
    head_tiles
        Tiles of the whole head: where a pass computed only some, the rest are taken to be alike.
    expert_rows
        Only experts with so many rows are kept; the others took what was left over.
    encoder
        Layers that are an encoder's, the first ones; in a prefill pass the others see one token
        of their own.
    """
    head: list[Event] = []
    for event in events:
        duration = event.end_ns - event.start_ns
        if event.kind == "attention":
            if prompt_tokens is None:
                samples.decode[batch_size, context].append(duration)
            elif encoder and event.layer >= encoder:
                samples.decode[batch_size, 1].append(duration)
            else:
                samples.prefill[batch_size, prompt_tokens].append(duration)
        elif event.kind == "cross_attention":
            if prompt_tokens is None:
                samples.cross_decode[batch_size, context].append(duration)
            else:
                samples.cross_prefill[batch_size, prompt_tokens].append(duration)
        elif event.kind == "head":
            head.append(event)
        elif event.kind in ("expert", "host_expert"):
            if event.rows in expert_rows:
                samples.by_rows[event.kind, event.rows].append(duration)
        elif event.kind in _BY_ROWS:
            samples.by_rows[event.kind, event.rows].append(duration)
    if head:
        first, *others = [event.end_ns - event.start_ns for event in head]
        total = first
        if others:
            total += round(sum(others) / len(others) * (head_tiles - 1))
        elif head_tiles > 1:
            return
        samples.by_rows["head", head[0].rows].append(total)
