"""The state of one group of sequences: keys and values, hidden states, routing.

Rows come in two forms. *Padded*: [sequences, longest, hidden], as attention needs them. *Packed*:
the tokens that exist, sequence by sequence, as router and experts need them. Where all sequences
are equally long the two are the same.
"""

from __future__ import annotations

from typing import Any

import torch

from executor.adapters.base import CacheShape
from executor.memory import Regions
from planner.documents import ModelSpec, Policy, Workload
from planner.memory import context_tokens, group_sequences, kept_tokens
from solvers.counting import counted

__all__ = ["GroupState", "KeyValueWriter", "cut"]


class GroupState:
    """Preallocated buffers of the largest group, and what a pass keeps in them.

    Parameters
    ----------
    arena
        Where the buffers are cut from.
    model, policy, workload, dtype
        Sizes.
    cache
        What attention keeps of a token.

    Attributes
    ----------
    context, columns
        Tokens of a sequence at its longest, and of how many keys and values are kept.
    window, sinks
        With a window: how many of the last and of the first tokens attention sees.
    device
        Where the buffers lie.
    counts
        Tokens of each sequence in this pass (0: finished).
    past
        Tokens of each sequence before this pass.
    starts
        Packed row at which each sequence begins; one more entry at the end.
    longest
        Padded rows of each sequence.
    clean
        Whether keys and values, used or not, are numbers.
    begins, mixed
        Whether any sequence begins in this pass; whether others go on meanwhile.
    """

    def __init__(
        self,
        arena: Regions,
        model: ModelSpec,
        policy: Policy,
        workload: Workload,
        dtype: torch.dtype,
        cache: CacheShape,
    ) -> None:
        self.batch_size = policy.batch_size
        self.capacity = group_sequences(policy, workload)
        self.context, self.columns = context_tokens(workload), kept_tokens(workload)
        self.window, self.sinks = workload.attention_window, workload.attention_sinks or 0
        self.prompt_tokens = workload.prompt_tokens
        self._hidden_size = model.hidden_size
        rows = self.capacity * workload.prompt_tokens
        layers = len(model.layers) - model.encoder_depth  # an encoder keeps nothing
        kept = list(range(layers))
        if policy.kv == "below":
            kept = [at for at, layer in enumerate(policy.layers) if layer.dense_resident]
        elif policy.kv == "batches":
            kept = []  # batch by batch, also those that stay
        self._kept = {layer: at for at, layer in enumerate(kept)}
        self._below = frozenset(range(layers)) - frozenset(kept)
        # sequences that are bound together
        self._together = self.batch_size if policy.kv == "batches" else self.capacity
        self._bound: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._stay: list[torch.Tensor] = []
        places = len(kept) * self.capacity * self.columns
        keys = places * cache.key_heads * cache.key_size
        values = places * cache.value_heads * cache.value_size
        both = cut(arena, "kv", "keys and values", (keys + values,), dtype)
        shape = (len(kept), self.capacity)
        self._keys = both[:keys].view(*shape, cache.key_heads, self.columns, cache.key_size)
        self._values = both[keys:].view(*shape, cache.value_heads, self.columns, cache.value_size)
        self._hidden = cut(arena, "hidden", "residual", (rows, model.hidden_size), dtype)
        self._normed = cut(arena, "hidden", "expert input", (rows, model.hidden_size), dtype)
        self._sums = cut(arena, "hidden", "sums", (rows, model.hidden_size), torch.float32)
        self.device = self._hidden.device
        self.counts: list[int] = []
        self.past: list[int] = []
        self.starts: list[int] = [0]
        self.longest = 0
        self.begins = self.mixed = False
        # a mapping begins as zeros, a GPU's memory as whatever it was
        self.clean = self.device.type == "cpu"

    def begin(self, counts: list[int], past: list[int], longest: int = 0) -> None:
        """Begin a pass: each sequence begins (no past, its prompt), goes on (one token) or rests.

        Where any begins, rows are at least ``longest`` long.
        """
        if len(counts) > self.capacity or len(counts) != len(past):
            raise ValueError(
                f"a group of {self.capacity} has no room for {counted(len(counts), 'sequence')}"
            )
        if any(count > 1 and before for count, before in zip(counts, past, strict=True)):
            raise ValueError("a sequence begins or goes on, not both")
        if any(a + b > self.context for a, b in zip(counts, past, strict=True)):
            raise ValueError(f"a sequence is longer than {counted(self.context, 'token')}")
        self.counts, self.past = counts, past
        indices = range(len(counts))
        self.begins = any(map(self.joins, indices))
        self.mixed = self.begins and any(map(self.goes_on, indices))
        self.longest = max(*counts, longest if self.begins else 0)
        if self.longest > self.prompt_tokens:
            raise ValueError(f"a prompt is longer than {counted(self.prompt_tokens, 'token')}")
        self.starts = [0]
        for count in counts:
            self.starts.append(self.starts[-1] + count)

    def joins(self, index: int) -> bool:
        """Whether a sequence begins in this pass."""
        return self.counts[index] > 0 and not self.past[index]

    def goes_on(self, index: int) -> bool:
        """Whether a sequence has begun in an earlier pass, and has not ended."""
        return self.counts[index] > 0 and self.past[index] > 0

    def clear_context(self) -> None:
        """Forget all keys and values that stay; so nothing computed from a masked column is no
        number."""
        for one in (self._keys, self._values, *self._stay):
            one.zero_()

    @property
    def behind(self) -> list[int]:
        """Tokens of each sequence that another side has computed before all of this one's."""
        return [0] * len(self.counts)

    @property
    def sequences(self) -> int:
        """Sequences of this group, finished ones too."""
        return len(self.counts)

    @property
    def tokens(self) -> int:
        """Tokens of this pass."""
        return self.starts[-1]

    @property
    def even(self) -> bool:
        """Whether packed and padded rows are the same."""
        return self.tokens == self.sequences * self.longest

    @property
    def hidden(self) -> torch.Tensor:
        """Residual stream, padded: [sequences, longest, hidden]."""
        rows = self.sequences * self.longest
        return self._hidden[:rows].view(self.sequences, self.longest, self._hidden_size)

    @property
    def normed(self) -> torch.Tensor:
        """Input of router, experts and dense MLP, packed: [tokens, hidden]."""
        return self._normed[: self.tokens]

    @property
    def sums(self) -> torch.Tensor:
        """Weighted sum over experts in float32, packed: [tokens, hidden]."""
        return self._sums[: self.tokens]

    def batch(self, index: int) -> range:
        """Sequences of a batch."""
        first = index * self.batch_size
        return range(first, min(first + self.batch_size, self.sequences))

    @property
    def batches(self) -> int:
        """Batches of this group."""
        return -(-self.sequences // self.batch_size)

    def batch_tokens(self, index: int) -> int:
        """Tokens of a batch in this pass."""
        batch = self.batch(index)
        return self.starts[batch.stop] - self.starts[batch.start]

    def keys_values(self, layer: int, first: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of some sequences: two [sequences, heads, columns, size]."""
        if layer in self._below:
            batch, begin = divmod(first, self._together)
            keys, values = self._bound[layer, batch]
            own = slice(begin, begin + stop - first)
            return keys[own], values[own]
        at = self._kept[layer]
        return self._keys[at, first:stop], self._values[at, first:stop]

    def bind(
        self,
        layer: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        batch: int = 0,
        *,
        stay: bool = False,
    ) -> None:
        """Where keys and values lie of a layer, or of one of its batches: all of [sequences, heads,
        columns, size]. What was copied is forgotten with its slot, others ``stay``."""
        self._bound[layer, batch] = keys, values
        if stay:
            self._stay += [keys, values]

    def logits(self, count: int, vocab_size: int) -> list[torch.Tensor]:
        """Room for ``count`` rows of logits, in tensors [some of them, vocabulary].

        It is that of the hidden states: between a pass's last norm and the next pass they are no
        longer needed.
        """
        parts = []
        for buffer in (self._hidden, self._normed, self._sums):
            values = buffer.view(-1).view(self._hidden.dtype)
            rows = min(count, len(values) // vocab_size)
            if rows:
                parts.append(values[: rows * vocab_size].view(rows, vocab_size))
                count -= rows
        if count:
            raise RuntimeError(f"no room for the logits of {counted(count, 'sequence')}")
        return parts

    def column(self, position: int) -> int:
        """Where a token's keys and values lie: its place, or, with a window, that of the token that
        the window has just left."""
        if self.window is None or position < self.sinks:
            return position
        return self.sinks + (position - self.sinks) % self.window

    def kept_positions(self, count: int) -> list[int]:
        """Which token lies in each column once a sequence has ``count``; any where none does."""
        newest = max(count - 1, 0)
        if self.window is None or count <= self.columns:
            return [min(column, newest) for column in range(self.columns)]
        return [
            column if column < self.sinks else newest - (newest - column) % self.window
            for column in range(self.columns)
        ]

    def last_rows(self) -> tuple[torch.Tensor, list[int]]:
        """Hidden state of each unfinished sequence's last token, and which sequences they are."""
        alive = [index for index, count in enumerate(self.counts) if count]
        rows = torch.tensor(
            [index * self.longest + self.counts[index] - 1 for index in alive], device=self.device
        )
        return self._hidden.index_select(0, rows), alive


class KeyValueWriter:
    """What transformers' attention takes for a cache: writes into the group's buffers.

    Parameters
    ----------
    state
        The group.
    layer, first, stop
        Layer and sequences that are computed.
    columns
        In decode, the column of each sequence's new token; None in prefill, which writes from 0.
    visible
        Columns that decode looks at.
    rows
        Which of the sequences prefill writes; None: all.
    kept
        Which tokens prefill keeps: [sequences, columns]; None: all.
    """

    def __init__(
        self,
        state: GroupState,
        layer: int,
        first: int,
        stop: int,
        columns: torch.Tensor | None,
        visible: int,
        rows: list[int] | None = None,
        kept: torch.Tensor | None = None,
    ) -> None:
        self._keys, self._values = state.keys_values(layer, first, stop)
        self._columns = columns
        self._visible = visible
        self._rows = slice(None) if rows is None else rows
        self._kept = kept

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep keys, values [sequences, kv_heads, tokens, head_dim]; return what is attended to."""
        if self._columns is None:
            for room, made in ((self._keys, keys), (self._values, values)):
                kept = made if self._kept is None else _gathered(made, self._kept)
                room[self._rows, :, : kept.shape[2]] = kept[self._rows]
            return keys, values
        rows = torch.arange(keys.shape[0], device=keys.device)
        self._keys[rows, :, self._columns] = keys[:, :, 0]
        self._values[rows, :, self._columns] = values[:, :, 0]
        return self._keys[:, :, : self._visible], self._values[:, :, : self._visible]


def _gathered(values: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Of ``values`` [sequences, heads, tokens, size] those tokens that are kept."""
    index = kept[:, None, :, None].expand(-1, values.shape[1], -1, values.shape[3])
    return values.gather(2, index)


def cut(
    arena: Regions, purpose: str, name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor of an arena's, accounted for under ``purpose``."""
    count = 1
    for extent in shape:
        count *= extent
    return arena.tensor(arena.take(purpose, name, count * dtype.itemsize), shape, dtype)
