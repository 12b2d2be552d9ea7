"""Prompts, pass by pass, until all have ended: a group of them, and others in freed places."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial

import torch

from executor.allocator import peak_resident_bytes
from executor.device import Device
from executor.failures import out_of_memory
from executor.prefetch import Prefetcher
from executor.recorder import KEPT_PASSES
from executor.routing import Recorded, RoutingLog, needs_of
from executor.runtime import Runtime
from executor.sampling import Sampler
from executor.schedule import Schedule
from executor.sequences import Grown, Sequences
from executor.texts import TextStream
from planner.documents import TraceTotals
from planner.predictors import Tables

__all__ = ["Generation"]


class Generation:
    """One call of ``Engine.generate``.

    Parameters
    ----------
    device
        What to run on.
    prompts
        Token ids of each prompt; none is empty.
    limit
        New tokens for each, or for all alike.
    end_tokens
        Tokens that end a sequence; such a token is still part of the output.
    ahead
        Keep, too, what each router says one MoE layer ahead, as of ``RoutingLog``; not where keys
        and values are copied batch by batch.
    sampler
        Draws tokens; None: the likeliest is taken.
    texts
        The text of each sequence, given its tokens as they come; it may end the sequence.
    recorded
        What a run of the same prompts chose, for what is clairvoyant.
    tables
        What predictors begin with, and go on counting; None: the policy's lists alone.
    kept_passes
        Of the recorder: passes whose events are kept one by one.

    Attributes
    ----------
    results
        New tokens of each prompt, as far as the run has come.
    ended
        Prompts whose sequences have ended.
    """

    def __init__(
        self,
        device: Device,
        prompts: list[list[int]],
        limit: int | Sequence[int],
        end_tokens: frozenset[int],
        *,
        ahead: bool = False,
        sampler: Sampler | None = None,
        texts: Sequence[TextStream] | None = None,
        recorded: Recorded | None = None,
        tables: Tables | None = None,
        kept_passes: int = KEPT_PASSES,
    ) -> None:
        self._device, self._prompts = device, prompts
        self._limits = [limit] * len(prompts) if isinstance(limit, int) else list(limit)
        self._sampler = sampler
        self.results: list[list[int]] = [[] for _ in prompts]
        size = device.state.capacity
        members = range(len(prompts))
        fed = [[*tokens, *device.start_tokens] for tokens in prompts]
        # what is called back knows nothing of this object: a cycle would keep a run's events until
        # some later collection
        ends = partial(_ends, self.results, self._limits, end_tokens, texts)
        group = Sequences(fed, members[:size], self.results, ends, waiting=members[size:])
        self._group = group
        # a place is never empty while prompts wait, so all end in as many passes as one group
        # after the other may take
        passes = -(-len(prompts) // size) * max(self._limits)
        self._longest = max(map(len, prompts)) if len(prompts) > size else 0
        self.ended: set[int] = set()
        self.routing = routing = RoutingLog(device.source.model, ahead=ahead)
        self.recorder = device.memory.recorder(kept_passes)
        needs = None
        if recorded is not None:
            needs = needs_of(recorded, device.source.model, device.policy)
        self._schedule = Schedule(device.policy, device.units, passes, needs=needs)
        # nothing has been written below yet
        self._schedule.copies(0, device.start_sizes([]))
        self._transfers = device.memory.transfers(self._schedule, device.copy, self.recorder)
        self._runtime = Runtime(
            device,
            self._transfers,
            self.recorder,
            lambda layer: routing.add(layer, device, group.members),
            (lambda layer: routing.look_ahead(layer, device)) if ahead else None,
            None if tables is None else Prefetcher(device, tables, recorded).routed,
        )
        self._pass_ns: list[int] = []
        self._prefill_ns = self._decode_ns = self._wall_ns = 0
        self._bytes_before = device.bytes_read, device.embedding.bytes_read

    def run(self, progress: Callable[[int, int], None] | None) -> None:
        """Run all prompts to their ends.

        Raises
        ------
        RunError
            As ``passes``.
        """
        with closing(self.passes()) as passes:
            for _ in passes:
                if progress is not None:
                    progress(sum(map(len, self.results)), sum(self._limits))

    def passes(self) -> Generator[list[Grown]]:
        """Run pass by pass, giving what each has brought; closed before its end, the run is over.

        Raises
        ------
        RunError
            If the machine stops the run, memory is out, or logits are no numbers; ``results`` then
            holds what there is. ``CancelledError`` after ``cancel``.
        """
        state, operations = self._device.state, self._device.operations
        operations.chooser = None if self._sampler is None else partial(self._draw, self._sampler)
        if not state.clean:
            # a run that failed may have left what must not be met again: numbers that are none
            with torch.inference_mode():
                state.clear_context()
            if self._device.spill is not None:
                self._device.spill.clear()
        state.clean = False
        # whatever came between making this and running it is no part of the run
        self.recorder.restart()
        begin = self.recorder.origin_ns
        self._transfers.start()
        try:
            while self._group.tokens:
                # not around the yield: it would hold for the caller's own thread
                with torch.inference_mode(), out_of_memory(f"pass {len(self._pass_ns)}"):
                    grown = self._pass()
                yield grown
            state.clean = True
        finally:
            operations.chooser = None
            self._wall_ns = time.perf_counter_ns() - begin
            self._runtime.close()
            self._transfers.close()
        self._schedule.check_integrity()

    def _pass(self) -> list[Grown]:
        group, device = self._group, self._device
        begin = time.perf_counter_ns()
        device.operations.begin(group.counts, group.past, self._longest)
        number = len(self._pass_ns)
        self._transfers.copies(number + 1, device.start_sizes(self._lengths_next()))
        alive, following = self._runtime.run_pass(number, group.tokens)
        group.check_finite(device.operations, alive, number)
        forced = device.forced_token
        if forced is not None:
            # as transformers does, whatever the logits or a sampler say
            following = [
                token if self.results[group.members[place]] else forced
                for place, token in zip(alive, following, strict=True)
            ]
        grown = group.grow(alive, following)
        self.ended.update(one.member for one in grown if one.ended)
        elapsed = time.perf_counter_ns() - begin
        self._pass_ns.append(elapsed)
        # where sequences begin while others go on, the pass counts as decode
        if device.state.begins and not device.state.mixed:
            self._prefill_ns += elapsed
        else:
            self._decode_ns += elapsed
        return grown

    def _lengths_next(self) -> list[int]:
        """Tokens of each place whose keys and values the pass behind the next one may look at: of
        sequences that do not have their last token by then; 0 of the others, and where others
        begin."""
        group = self._group
        return [
            past + count if count and len(self.results[member]) + 1 < self._limits[member] else 0
            for member, past, count in zip(group.members, group.past, group.counts, strict=True)
        ]

    def _draw(self, sampler: Sampler, alive: list[int], rows: list[torch.Tensor]) -> list[int]:
        members = self._group.members
        return [sampler.draw(members[place], row) for place, row in zip(alive, rows, strict=True)]

    def cancel(self) -> None:
        """Stop soon, from another thread: at the next stage."""
        self._transfers.cancel()

    @property
    def stuck(self) -> bool:
        """Whether a read has not come back, so that the device cannot be used any more."""
        return self._transfers.stuck or self._device.embedding.stuck

    def totals(self) -> TraceTotals:
        """Sums over the passes that have run."""
        recorder, ledger = self.recorder, self._device.ledger
        before, rows_before = self._bytes_before
        return TraceTotals(
            wall_ns=self._wall_ns,
            prefill_ns=self._prefill_ns,
            decode_ns=self._decode_ns,
            prompt_tokens=sum(map(len, self._prompts)),
            new_tokens=sum(map(len, self.results)),
            passes=len(self._pass_ns),
            bytes_read=self._device.bytes_read - before,
            wasted_prefetch_bytes=self._transfers.wasted_bytes,
            served=dict(sorted(self._schedule.served.items())),
            bubble_inter_layer_ns=recorder.total_ns("wait_dense") + recorder.total_ns("wait_kv"),
            bubble_intra_layer_ns=recorder.total_ns("wait_expert") + recorder.total_ns("wait_head"),
            duration_by_kind_ns=recorder.durations(),
            count_by_kind=recorder.counts(),
            pass_ns=tuple(self._pass_ns),
            device_peak_bytes=ledger.peak_bytes,
            device_budget_bytes=ledger.budget_bytes,
            process_peak_bytes=peak_resident_bytes(),
            requests=len(self._prompts),
            embedding_bytes=self._device.embedding.bytes_read - rows_before,
        )


def _ends(
    results: list[list[int]],
    limits: list[int],
    end_tokens: frozenset[int],
    texts: Sequence[TextStream] | None,
    member: int,
    token: int,
) -> bool:
    ends = token in end_tokens or len(results[member]) >= limits[member]
    if texts is not None:
        texts[member].push(token)
        ends |= texts[member].stopped
    return ends
