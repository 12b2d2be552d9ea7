"""Scenarios: how many tokens each expert gets in each pass, drawn from whole recorded sequences.

Sequences are split into three disjoint sets: *fit* for the solver, *choose* to pick the best of
its plan and the baselines, *judge* for what is reported. A group's passes use consecutive positions
of the same sequences, so that correlation between tokens, layers and passes is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.routing import TraceArrays
from solvers.errors import DocumentError

__all__ = ["PassShape", "Sequences", "Split", "draw_counts", "pass_shapes", "split_sequences"]


class PassShape(NamedTuple):
    """One pass, before its routing is known.

    Attributes
    ----------
    phase
        ``prefill`` or ``decode``.
    group
        Which group of the run it belongs to; groups have their own sequences.
    sequences
        Sequences in the group.
    context
        Prompt tokens of each (prefill), or tokens in the context of each (decode).
    weight
        Passes of the workload that it stands for.
    """

    phase: Literal["prefill", "decode"]
    group: int
    sequences: int
    context: int
    weight: int


def pass_shapes(
    *, requests: int, prompt_tokens: int, new_tokens: int, group: int, decode_passes: int
) -> tuple[PassShape, ...]:
    """The passes of a workload: those of one full group, and of the smaller last one.

    Parameters
    ----------
    requests, prompt_tokens, new_tokens
        The workload; the first new token comes out of prefill.
    group
        Sequences of a full group.
    decode_passes
        Most decode passes that stand for all of a group; their contexts are the middles of equal
        runs of passes.
    """
    full, rest = divmod(requests, group)
    sizes = [(group, full)] if full else []
    if rest:
        sizes.append((rest, 1))
    shapes = []
    decodes = new_tokens - 1
    shown = min(decodes, decode_passes)
    for index, (sequences, times) in enumerate(sizes):
        shapes.append(PassShape("prefill", index, sequences, prompt_tokens, times))
        for step in range(shown):
            first, end = step * decodes // shown, (step + 1) * decodes // shown
            context = prompt_tokens + 1 + (first + end - 1) // 2
            shapes.append(PassShape("decode", index, sequences, context, times * (end - first)))
    return tuple(shapes)


@dataclass(frozen=True, eq=False)
class Sequences:
    """A routing trace, sequence by sequence.

    Attributes
    ----------
    experts
        uint16 [tokens, moe_layers, top_k], as in the trace.
    prefill, decode
        For each sequence the first token and the number of tokens of that phase; a sequence
        without decode tokens lends its prefill tokens, and the other way round.
    expert_count
        Experts of a layer.
    encoder
        MoE layers of an encoder, the first ones; 0 in most models. With one, ``prefill`` are the
        tokens that it met, and ``decode`` those of the decoder.
    begin
        With an encoder, the token of each sequence that its decoder begins with; it is none of
        ``decode`` where others are.
    """

    experts: npt.NDArray[np.uint16]
    prefill: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int], ...]
    expert_count: int
    encoder: int = 0
    begin: tuple[int, ...] = ()

    @classmethod
    def of(cls, arrays: TraceArrays, expert_count: int) -> Sequences:
        """Index a trace.

        Raises
        ------
        DocumentError
            If it holds no token.
        """
        if not len(arrays.sequence):
            raise DocumentError("the routing trace is empty: profile again, with some prompts")
        borders = np.flatnonzero(np.diff(arrays.sequence)) + 1
        starts = [0, *borders.tolist()]
        ends = [*borders.tolist(), len(arrays.sequence)]
        prefill, decode, begin = [], [], []
        for start, end in zip(starts, ends, strict=True):
            split = start + int((arrays.phase[start:end] == 0).sum())
            first, second = (start, split - start), (split, end - split)
            if arrays.encoder:
                begin.append(split)
                second = (split + 1, end - split - 1) if end > split + 1 else second
            prefill.append(first if first[1] else second)
            decode.append(second if second[1] else first)
        return cls(
            arrays.experts,
            tuple(prefill),
            tuple(decode),
            expert_count,
            arrays.encoder,
            tuple(begin),
        )

    @property
    def count(self) -> int:
        """Number of sequences."""
        return len(self.prefill)

    def token_shares(self, members: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """[moe_layers, experts]: probability that a decode token of a sequence chooses it; 0 in an
        encoder's layers, which it does not meet."""
        layers = self.experts.shape[1]
        shares: npt.NDArray[np.float64] = np.zeros((layers, self.expert_count))
        for member in members.tolist():
            start, length = self.decode[member]
            chosen = self.experts[start : start + length, self.encoder :].astype(np.int64)
            shares[self.encoder :] += _count(chosen, self.expert_count) / length
        return shares / len(members)


class Split(NamedTuple):
    """Sequence numbers of the three sets; ``shared`` where the trace has too few to split."""

    fit: npt.NDArray[np.int64]
    choose: npt.NDArray[np.int64]
    judge: npt.NDArray[np.int64]
    shared: bool


def split_sequences(count: int, seed: int) -> Split:
    """Half of the sequences to fit, a quarter to choose, a quarter to judge."""
    order = np.random.default_rng([seed, 1]).permutation(count)
    if count < 4:
        return Split(order, order, order, True)
    quarter = count // 4
    return Split(order[2 * quarter :], order[quarter : 2 * quarter], order[:quarter], False)


def draw_counts(
    sequences: Sequences,
    members: npt.NDArray[np.int64],
    shapes: tuple[PassShape, ...],
    generator: np.random.Generator,
) -> npt.NDArray[np.int32]:
    """Tokens of each expert in each pass of one run: int32 [passes, moe_layers, experts].

    A group draws its sequences from ``members``, each once before any of them twice; each starts
    at a random position, and wraps around where it is too short. With an encoder, prefill has the
    prompts' tokens in its layers, and in the decoder's each sequence's first token; decode has
    nothing in the encoder's.
    """
    layers, encoder = sequences.experts.shape[1], sequences.encoder
    counts = np.zeros((len(shapes), layers, sequences.expert_count), dtype=np.int32)
    drawn: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    offsets: npt.NDArray[np.int64] = drawn
    group, step = -1, 0
    for index, shape in enumerate(shapes):
        if shape.group != group:
            group, step = shape.group, 0
            rounds = -(-shape.sequences // len(members))
            drawn = np.concatenate([generator.permutation(members) for _ in range(rounds)])
            drawn = drawn[: shape.sequences]
            offsets = generator.integers(0, 1 << 30, size=len(drawn))
        table = np.array(sequences.prefill if shape.phase == "prefill" else sequences.decode)
        starts, lengths = table[drawn, 0], table[drawn, 1]
        if shape.phase == "prefill":
            # a window of the sequence; all of it, over again, where it is shorter
            spare = np.maximum(lengths - shape.context, 0) + 1
            places = (offsets % spare)[:, None] + np.arange(shape.context)[None, :]
            rows = starts[:, None] + places % lengths[:, None]
            met = [(slice(encoder or None), rows.ravel())]
            if encoder:
                met.append((slice(encoder, None), np.array(sequences.begin)[drawn]))
        else:
            met = [(slice(encoder, None), starts + (offsets + step) % lengths)]
            step += 1
        for columns, tokens in met:
            chosen = sequences.experts[tokens, columns].astype(np.int64)
            counts[index, columns] = _count(chosen, sequences.expert_count)
    return counts


def _count(chosen: npt.NDArray[np.int64], expert_count: int) -> npt.NDArray[np.int64]:
    """Choices [tokens, layers, top_k] -> tokens of each expert [layers, experts]."""
    layers = chosen.shape[1]
    keys = chosen + np.arange(layers)[None, :, None] * expert_count
    counts = np.bincount(keys.ravel(), minlength=layers * expert_count)
    return counts.reshape(layers, expert_count)
