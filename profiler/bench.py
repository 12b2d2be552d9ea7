"""A bench: the executor's own device, runtime and transfers, driven with chosen routing.

Nothing is imitated. A bench is a ``Device`` with as many layers and experts of the real model as
its budget holds; ``Runtime`` runs its layers, ``Transfers`` its copies, and what is measured are
the events that a real run records. Only the router's answer is replaced (the router itself is
computed), so that each expert gets as many rows as the bench wants. Layers and experts take turns
as they do in a run, so weights are as cold in the processor's caches as they are there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from executor.closing import Closing
from executor.device import Device
from executor.encoder_decoder import EncoderDecoderState
from executor.memory import Backend
from executor.routing import RoutingLog
from executor.runtime import Runtime
from executor.schedule import Schedule
from executor.source import WeightSource
from executor.units import Unit
from planner.documents import Event
from profiler.layout import BenchPlan, bench_layers, first_layers

__all__ = ["Bench", "Tokens", "assign_rows"]

_MANY_PASSES = 1 << 20


def assign_rows(
    tokens: int, top_k: int, experts: Sequence[int], rows: int, turn: int
) -> torch.Tensor:
    """Choices [tokens, top_k] that give as many experts as possible ``rows`` tokens each.

    The experts are dealt to the top_k columns, so that no token has one twice; each column goes
    to its experts in runs of ``rows`` tokens, the last of which takes what is left.

    Parameters
    ----------
    tokens, top_k
        Shape of the result.
    experts
        Who may be chosen; at least ``top_k``.
    rows
        Wanted tokens of each expert.
    turn
        Shifts who gets what.
    """
    chosen = np.empty((tokens, top_k), dtype=np.int64)
    shift = turn % len(experts)
    order = [*experts[shift:], *experts[:shift]]
    for column in range(top_k):
        own = order[column::top_k]
        run = np.minimum(np.arange(tokens) // rows, len(own) - 1)
        chosen[:, column] = np.asarray(own)[run]
    return torch.from_numpy(chosen)


class Tokens:
    """Token ids to embed, over and over: those of prompts, and those that decode made of them.

    Which rows of the embedding are at hand depends on how tokens repeat, so real ones are taken.
    Where a pass needs more than there are, the rest repeats and brings new ones as the first do:
    of n tokens n ** g are different, with g from their whole and their half (Heaps' law).
    """

    def __init__(self, prompts: Sequence[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._prompts = np.asarray(prompts)
        self._streams = {False: self._prompts, True: self._prompts}
        self._at = {False: 0, True: 0}

    def add_decoded(self, tokens: Sequence[int]) -> None:
        """From now on embed ``tokens`` in decode; until then it is the prompts' as well."""
        self._streams[True], self._at[True] = np.asarray(tokens), 0

    @property
    def prompts(self) -> npt.NDArray[np.int64]:
        """What prefill embeds before decode begins."""
        return self._prompts

    def take(self, count: int, *, decode: bool) -> tuple[list[int], bool]:
        """The next ``count`` of them, and whether they are the first of all again."""
        stream, at = self._streams[decode], self._at[decode]
        if count > len(stream):
            stream = self._streams[decode] = self._longer(stream, count)
        if at + count > len(stream):
            at = 0
        self._at[decode] = at + count
        return stream[at : at + count].tolist(), at == 0

    def _longer(self, stream: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        size = len(stream)
        different = np.unique(stream)
        half = len(np.unique(stream[: -(-size // 2)]))
        growth = math.log2(len(different) / half)
        unseen = np.setdiff1d(np.arange(self._vocab_size), different)
        np.random.default_rng(0).shuffle(unseen)
        lengths = np.arange(size, count + 1)
        reached = np.floor(len(different) * (lengths / size) ** growth + 1e-9).astype(np.int64)
        brought = np.minimum(reached - len(different), len(unseen))
        again = stream[np.arange(size, count) % size]
        new = np.diff(brought) > 0
        again[new] = unseen[brought[1:][new] - 1]
        return np.concatenate([stream, again])


class Bench(Closing):
    """A device with a bench's layers, and a runtime on it. Use as a context manager.

    Parameters
    ----------
    source
        The whole model's weights.
    plan
        What lies on the bench.
    memory_bytes
        Device budget.
    tokens
        What is embedded.
    paced_bytes_per_second
        Bandwidth to hold reads to.
    backend
        Kind of device; the CPU if not given.
    """

    def __init__(
        self,
        source: WeightSource,
        plan: BenchPlan,
        memory_bytes: int,
        tokens: Tokens,
        paced_bytes_per_second: int | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.plan = plan
        self.model = first_layers(source.model, plan.layers)
        part = source.part(self.model, bench_layers(source.model, plan.layers))
        self._tokens = tokens
        with torch.inference_mode():
            self.device = Device(
                part,
                plan.policy,
                plan.workload,
                memory_bytes,
                paced_bytes_per_second=paced_bytes_per_second,
                backend=backend,
            )
        self._forced: list[torch.Tensor] = []
        self._log = RoutingLog(self.model)
        self._members = range(0)
        self._decoded = False
        self._replace_router()
        self._start(())

    def _start(self, chain: tuple[tuple[Unit, ...], ...]) -> None:
        """A fresh channel and clock: one pass after the other from here."""
        rest = ((),) * (self.plan.layers + 1 - len(chain))
        units = dataclasses.replace(self.device.units, chain=(*chain, *rest))
        self._passes = 0
        memory = self.device.memory
        self._recorder = memory.recorder(_MANY_PASSES)
        schedule = Schedule(self.plan.policy, units, _MANY_PASSES)
        self._transfers = memory.transfers(schedule, self.device.copy, self._recorder)
        self._runtime = Runtime(self.device, self._transfers, self._recorder, self._on_routed)
        self._transfers.start()

    def _replace_router(self) -> None:
        """Compute the router, but answer with the choices that the bench wants."""
        adapter = self.device.adapter
        original = adapter.route

        def route(layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            weights, _ = original(layer, rows)
            start = rows.storage_offset() // rows.shape[1] - self._first_row()
            return weights, self._forced[layer][start : start + len(rows)]

        # on the instance: the class and all other devices keep theirs
        vars(adapter)["route"] = route

    def _first_row(self) -> int:
        normed = self.device.state.normed
        return normed.storage_offset() // normed.shape[1]

    def _on_routed(self, layer: int) -> None:
        self._log.add(layer, self.device, self._members)

    def choice(self, layer: int) -> list[int]:
        """Experts of a layer that routing may name: residents, or a host's, which are not copied
        ahead; all where those are too few."""
        spec, own = self.model.layers[layer], self.plan.policy.layers[layer]
        named = list(own.resident)
        if self.plan.policy.host is not None:
            named = [expert for expert in range(spec.experts) if expert not in own.prefetch]
        return named if len(named) >= spec.top_k else list(range(spec.experts))

    def most_rows(self, tokens: int) -> int:
        """Rows of each expert where ``tokens`` are spread evenly over all that may be named."""
        layer = self.plan.moe_layer
        spec = self.model.layers[layer]
        return max(tokens * spec.top_k // len(self.choice(layer)), 1)

    def run(
        self,
        counts: list[int],
        past: list[int],
        rows: int,
        *,
        batch_size: int | None = None,
        head_tiles: int | None = 0,
        prompt: int = 0,
    ) -> list[Event]:
        """One pass through the bench's layers; returns its events, copies too.

        Parameters
        ----------
        counts, past
            Tokens of each sequence in the pass and before it.
        rows
            Tokens that each active expert is to have.
        batch_size
            Sequences of one batch; all of them if not given.
        head_tiles
            How many head tiles are computed; None for all, 0 for no head at all.
        prompt
            With an encoder, where sequences go on: tokens of the prompt of each.
        """
        device, index = self.device, self._passes
        total = sum(counts)
        if isinstance(device.state, EncoderDecoderState) and prompt:
            device.state.sources[: len(counts)] = [prompt] * len(counts)
        self._forced = [
            assign_rows(
                self._tokens_in(layer, counts),
                spec.top_k,
                self.choice(layer),
                rows,
                7 * index + layer,
            ).to(device.device)
            if spec.experts
            else torch.empty(0)
            for layer, spec in enumerate(self.model.layers)
        ]
        device.state.batch_size = batch_size or len(counts)
        self._members = range(len(counts))
        self._log = RoutingLog(self.model)
        tokens = self._embedded(total, decode=any(past))
        with torch.inference_mode(), device.operations.threads:
            self._recorder.resume()
            device.operations.begin(counts, past)
            self._runtime.embed(index, tokens)
            for layer in range(self.plan.layers):
                self._runtime.layer(index, layer)
            if head_tiles != 0:
                self._runtime.head(index, head_tiles)
            else:
                self._transfers.enter(index, self.plan.layers)
        self._passes += 1
        return self._recorder.take()

    def _tokens_in(self, layer: int, counts: list[int]) -> int:
        """Tokens that a layer computes; an encoder has all but the last of each sequence."""
        depth = self.model.encoder_depth
        if not depth:
            return sum(counts)
        return sum(counts) - len(counts) if layer < depth else len(counts)

    def _embedded(self, total: int, *, decode: bool) -> list[int]:
        """A pass's tokens; of their rows those are kept that a run would have kept by then."""
        tokens, first = self._tokens.take(total, decode=decode)
        if not decode or first or not self._decoded:
            self.device.embedding.forget()
        if decode and (first or not self._decoded):
            self.device.embedding.keep(self._tokens.prompts)
        self._decoded = decode
        return tokens

    def stream(self, *, on: bool) -> None:
        """From now on let the channel copy prefetches in vain, or let it rest."""
        self.close()
        # the head is not part of every pass here, so its tiles would block the chain
        self._start(self.device.units.chain[:-1] if on else ())

    def fill(self, units: Sequence[Unit]) -> list[Event]:
        """Copy ``units`` in this order, with nothing computed beside; returns the copies."""
        self.close()
        self._start((tuple(units),))
        self._transfers.wait(units[-1])
        self.close()
        events = self._recorder.take()
        self._start(())
        return events

    def close(self) -> None:
        """Stop the reader, and what computes on a host."""
        self._transfers.close()
        self._runtime.close()
