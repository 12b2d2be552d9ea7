"""Models with an encoder: the group's state on both sides, attention, and what joins the sides.

A pass goes through all layers, the encoder's first. There it computes the prompts of sequences that
begin, and nothing where none does; then, in the decoder's, one token of every sequence. Of each
prompt's output every layer of the decoder keeps keys and values, computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from executor.adapters.base import CacheShape
from executor.adapters.encoder_decoder import EncoderDecoderAdapter
from executor.attention import Attention, Tile
from executor.embedding import Embedding
from executor.memory import Regions
from executor.operations import Operations
from executor.state import GroupState, KeyValueWriter, cut
from planner.documents import ModelSpec, Policy, Workload
from solvers.counting import counted

__all__ = ["EncoderDecoderOperations", "EncoderDecoderState"]

Tokens = npt.NDArray[np.int64]


class EncoderDecoderState(GroupState):
    """A group whose passes have two sides: ``begin`` is followed by the encoder's, ``turn`` by the
    decoder's.

    A sequence's tokens are its prompt, the decoder's start token, and the new ones; the last of
    those that a pass is fed goes to the decoder, all before it to the encoder. Of the columns of
    keys and values the first are the new tokens', the others the prompt's.

    Attributes
    ----------
    sources
        Prompt tokens of the sequence at each place.
    joined
        On the decoder's side: sequences that began in this pass.
    decodes
        Which side it is.
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
        super().__init__(arena, model, policy, workload, dtype, cache)
        self._depth, self._own_columns = model.encoder_depth, workload.new_tokens
        shape = (self.capacity, model.hidden_size)
        self._decoded = cut(arena, "hidden", "decoder's residual", shape, dtype)
        self.sources = [0] * self.capacity
        self.joined: list[int] = []
        self.decodes = False
        self._encoded_rows = 0
        self._fed: list[int] = []
        self._positions: list[int] = []

    def begin(self, counts: list[int], past: list[int], longest: int = 0) -> None:
        """Begin a pass, on the encoder's side."""
        if len(counts) != len(past):
            raise ValueError(f"{counted(len(counts), 'sequence')} have {len(past)} pasts")
        self.decodes, self._fed = False, counts
        prompts = [max(count - 1, 0) for count in counts]
        super().begin(prompts, [0] * len(counts), longest)
        for place, (count, before) in enumerate(zip(counts, past, strict=True)):
            if count and not before:
                self.sources[place] = prompts[place]
        self._positions = [
            max(before - source, 0) if count else 0
            for count, before, source in zip(counts, past, self.sources, strict=False)
        ]
        if max(self._positions) >= self._own_columns:
            raise ValueError(f"a sequence has more than {counted(self._own_columns, 'new token')}")

    def turn(self) -> None:
        """Go on to the decoder's side."""
        self.decodes = True
        self.joined = [place for place, count in enumerate(self.counts) if count]
        self.counts, self.past = [int(count > 0) for count in self._fed], self._positions
        self.starts = [0]
        for count in self.counts:
            self.starts.append(self.starts[-1] + count)
        self._encoded_rows, self.longest = self.longest, 1
        self.mixed = 0 < len(self.joined) < self.tokens

    def share_out(
        self, fed: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> tuple[
        np.ndarray[tuple[int], np.dtype[np.int64]],
        np.ndarray[tuple[int], np.dtype[np.int64]],
        list[int],
    ]:
        """Of a pass's tokens those of the encoder, those of the decoder, and whose these are."""
        alive = [place for place, count in enumerate(self._fed) if count]
        last = np.cumsum([self._fed[place] for place in alive]) - 1
        return np.delete(fed, last), fed[last], alive

    @property
    def behind(self) -> list[int]:
        """A decoder's tokens come behind the prompt."""
        return self.sources[: len(self.counts)] if self.decodes else super().behind

    @property
    def hidden(self) -> torch.Tensor:
        """Residual stream of the present side, padded: [sequences, longest, hidden]."""
        return self.decoded[:, None] if self.decodes else super().hidden

    @property
    def decoder_past(self) -> list[int]:
        """New tokens of each sequence that the decoder has met before this pass."""
        return self._positions

    @property
    def decoded(self) -> torch.Tensor:
        """The decoder's residual stream, [sequences, hidden]."""
        return self._decoded[: self.sequences]

    def encoded(self, place: int) -> torch.Tensor:
        """The encoder's output for a sequence that has joined: [tokens, hidden].

        It lies there until the pass ends.
        """
        return self._hidden[place * self._encoded_rows :][: self.sources[place]]

    def keys_values(self, layer: int, first: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of some sequences: two [sequences, heads, columns, size]."""
        return super().keys_values(layer - self._depth, first, stop)

    def prompt_keys_values(
        self, layer: int, first: int, stop: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of their prompts alone, as far as the longest of them goes."""
        end = self._own_columns + max(self.sources[first:stop])
        keys, values = self.keys_values(layer, first, stop)
        return keys[:, :, self._own_columns : end], values[:, :, self._own_columns : end]

    def last_rows(self) -> tuple[torch.Tensor, list[int]]:
        """Hidden state of each unfinished sequence's token, and which sequences they are."""
        alive = [place for place, count in enumerate(self.counts) if count]
        return self._decoded.index_select(0, torch.tensor(alive, device=self.device)), alive


class _TwoSided(Attention):
    """Attention to a side's own tokens, and a decoder's to its prompt."""

    def __init__(self, adapter: EncoderDecoderAdapter, state: EncoderDecoderState) -> None:
        super().__init__(adapter, state)
        self._both, self._sides = adapter, state

    def _tiles(self, batch: range) -> Iterator[Tile]:
        if any(self._state.counts[batch.start : batch.stop]):
            encodes = not self._sides.decodes
            yield from self._grid(batch, self._state.longest, prefill=encodes)

    def _compute(self, layer: int, first: int, stop: int, prefill: bool) -> None:
        if not any(self._state.counts[first:stop]):
            return
        if not prefill:
            self._decode(layer, first, stop)
            return
        hidden = self._encode(layer, first, stop)
        self._pack(self._adapter.post_norm(layer, hidden), first, stop, frozenset())

    def cross(self, layer: int, batch: int) -> None:
        """What comes behind a decoder's attention to its own tokens: that to the prompts."""
        state = self._state
        for first, stop, _ in self._tiles(state.batch(batch)):
            if any(state.counts[first:stop]):
                hidden = state.hidden[first:stop]
                self._look_at_prompts(layer, first, stop, hidden)
                self._pack(self._adapter.post_norm(layer, hidden), first, stop, frozenset())

    def _encode(self, layer: int, first: int, stop: int) -> torch.Tensor:
        """All tokens of a prompt see each other."""
        state = self._state
        length = max(state.counts[first:stop])
        hidden = state.hidden[first:stop, :length]
        column = torch.arange(length, device=state.device)
        counts = torch.tensor(state.counts[first:stop], device=state.device)
        seen = (column < counts[:, None])[:, None, None]
        normed = self._adapter.input_norm(layer, hidden)
        return hidden.add_(self._both.self_attention(layer, normed, column[None], seen, None))

    def _decode(self, layer: int, first: int, stop: int) -> None:
        """A token sees those before it and itself."""
        state = self._state
        hidden, past = state.hidden[first:stop], state.past[first:stop]
        positions = torch.tensor(past, device=state.device)
        visible = max(past) + 1
        seen = torch.arange(visible, device=state.device) <= positions[:, None]
        cache = KeyValueWriter(state, layer, first, stop, positions, visible)
        normed = self._adapter.input_norm(layer, hidden)
        hidden.add_(
            self._both.self_attention(layer, normed, positions[:, None], seen[:, None, None], cache)
        )

    def _look_at_prompts(self, layer: int, first: int, stop: int, hidden: torch.Tensor) -> None:
        state = self._sides
        keys, values = state.prompt_keys_values(layer, first, stop)
        for place in state.joined:
            if first <= place < stop:
                made = self._both.cross_keys_values(layer, state.encoded(place))
                for room, new in zip((keys, values), made, strict=True):
                    room[place - first, :, : new.shape[1]] = new
        sources = torch.tensor(state.sources[first:stop], device=state.device)
        seen = torch.arange(keys.shape[2], device=state.device) < sources[:, None]
        hidden.add_(self._both.cross_attention(layer, hidden, keys, values, seen[:, None, None]))


class EncoderDecoderOperations(Operations):
    """The operations of both sides; ``turn`` comes between them."""

    def __init__(
        self,
        adapter: EncoderDecoderAdapter,
        state: EncoderDecoderState,
        embedding: Embedding,
        policy: Policy,
    ) -> None:
        self._both, self._sides = adapter, state
        super().__init__(adapter, state, embedding, policy)
        self.decoder = adapter.model.encoder_depth
        """The layer that ``turn`` comes before."""

    def _make_attention(self) -> Attention:
        self._two_sided = _TwoSided(self._both, self._sides)
        return self._two_sided

    def cross_attention(self, layer: int, batch: int) -> None:
        """A decoder's attention to its prompts, for one batch, and the norm behind it; where
        sequences begin, it makes what the layer keeps of theirs."""
        self.threads("cross_attention", self._state.batch_tokens(batch))
        self._two_sided.cross(layer, batch)

    def embed(self, tokens: list[int]) -> None:
        """Embedding rows of the pass's ``tokens`` (packed) into both sides' residual streams."""
        state = self._sides
        sources, targets, alive = state.share_out(np.asarray(tokens, dtype=np.int64))
        if len(alive) == state.sequences:
            self._embedding.gather(targets, state.decoded)
        else:
            # what has ended is never looked at, but must be numbers
            rows = torch.empty(len(alive), state.decoded.shape[1], dtype=self._adapter.dtype)
            self._embedding.gather(targets, rows)
            places = torch.tensor(alive, device=state.device)
            state.decoded.zero_().index_copy_(0, places, rows.to(state.device))
        self._scale(state.decoded, self._both.embedding_scale)
        ids = np.zeros(state.sequences, dtype=np.int64)
        ids[alive] = targets
        self._place(state.decoded[:, None], ids[:, None], state.decoder_past)
        if not len(sources):
            return
        super().embed(sources.tolist())
        for place, count in enumerate(state.counts):
            if count:
                ids = sources[state.starts[place] :][:count]
                self._place(state.hidden[place : place + 1, :count], ids[None], [0])

    def _place(self, rows: torch.Tensor, tokens: Tokens, before: list[int]) -> None:
        device = rows.device
        past = torch.tensor(before, device=device)
        self._both.place(rows, torch.from_numpy(tokens).to(device), past)

    def turn(self) -> None:
        """The norm behind the encoder, and on to the decoder."""
        state = self._sides
        for place, count in enumerate(state.counts):
            if count:
                rows = state.hidden[place, :count]
                rows.copy_(self._both.encoder_norm(rows))
        state.turn()
        self._attention.begin()

    def choose(self, layer: int) -> torch.Tensor:
        """As ever; but a sequence's tokens beyond an expert's capacity weigh nothing."""
        weights = super().choose(layer)
        kept = torch.ones_like(weights, dtype=torch.bool)
        experts = self._model.layers[layer].experts
        for first, stop in pairwise(self._state.starts):
            # no token chooses an expert twice, so that no expert can have more of them
            if stop - first > self._both.capacity(stop - first):
                mine = slice(first, stop)
                kept[mine] = self._both.kept(weights[mine], self.chosen[mine], experts)
        return self._both.weigh(weights, kept)
