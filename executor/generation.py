"""Groups of prompts, pass by pass: prefill, then decode until all have ended."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from executor.allocator import peak_resident_bytes
from executor.device import Device
from executor.routing import RoutingLog
from executor.runtime import Runtime
from executor.schedule import Schedule
from executor.sequences import Sequences
from planner.documents import TraceTotals

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
        New tokens for each.
    end_tokens
        Tokens that end a sequence; such a token is still part of the output.
    ahead
        Keep, too, what each router says one MoE layer ahead (dense parts must be resident).

    Attributes
    ----------
    results
        New tokens of each prompt, as far as the run has come.
    """

    def __init__(
        self,
        device: Device,
        prompts: list[list[int]],
        limit: int,
        end_tokens: frozenset[int],
        *,
        ahead: bool = False,
    ) -> None:
        self._device, self._prompts = device, prompts
        self._limit, self._end_tokens = limit, end_tokens
        self.results: list[list[int]] = [[] for _ in prompts]
        size = device.state.capacity
        self._groups = [
            range(at, min(at + size, len(prompts))) for at in range(0, len(prompts), size)
        ]
        self.routing = RoutingLog(device.source.model, ahead=ahead)
        self.recorder = device.memory.recorder()
        self._schedule = Schedule(device.policy, device.units, len(self._groups) * limit)
        self._transfers = device.memory.transfers(self._schedule, device.copy, self.recorder)
        self._runtime = Runtime(
            device,
            self._transfers,
            self.recorder,
            self._on_routed,
            (lambda layer: self.routing.look_ahead(layer, device)) if ahead else None,
        )
        self._pass_ns: list[int] = []
        self._prefill_ns = self._decode_ns = self._wall_ns = 0
        self._bytes_before = device.bytes_read
        self._members = range(0)

    def run(self, progress: Callable[[int, int], None] | None) -> None:
        """Run all groups.

        Raises
        ------
        RunError
            If the machine stops the run, or logits are no numbers; ``results`` then holds what
            there is.
        """
        begin = self.recorder.origin_ns
        self._transfers.start()
        try:
            with torch.inference_mode():
                for members in self._groups:
                    self._run_group(members, progress)
        finally:
            self._wall_ns = time.perf_counter_ns() - begin
            self._transfers.close()
        self._schedule.check_integrity()

    def _run_group(self, members: range, progress: Callable[[int, int], None] | None) -> None:
        self._members = members
        group = Sequences(self._prompts, members, self.results, self._end_tokens)
        operations = self._device.operations
        for step in range(self._limit):
            tokens = group.tokens
            if not tokens:
                return
            begin = time.perf_counter_ns()
            operations.begin(group.counts, group.past)
            number = len(self._pass_ns)
            alive, following = self._runtime.run_pass(number, tokens)
            group.check_finite(operations, alive, number)
            group.grow(alive, following)
            elapsed = time.perf_counter_ns() - begin
            self._pass_ns.append(elapsed)
            if step:
                self._decode_ns += elapsed
            else:
                self._prefill_ns += elapsed
            if progress is not None:
                progress(sum(map(len, self.results)), self._limit * len(self._prompts))

    def _on_routed(self, layer: int) -> None:
        self.routing.add(layer, self._device, self._members)

    def totals(self) -> TraceTotals:
        """Sums over the passes that have run."""
        recorder, ledger = self.recorder, self._device.ledger
        return TraceTotals(
            wall_ns=self._wall_ns,
            prefill_ns=self._prefill_ns,
            decode_ns=self._decode_ns,
            prompt_tokens=sum(map(len, self._prompts)),
            new_tokens=sum(map(len, self.results)),
            passes=len(self._pass_ns),
            bytes_read=self._device.bytes_read - self._bytes_before,
            wasted_prefetch_bytes=self._transfers.wasted_bytes,
            bubble_inter_layer_ns=recorder.total_ns("wait_dense"),
            bubble_intra_layer_ns=recorder.total_ns("wait_expert") + recorder.total_ns("wait_head"),
            duration_by_kind_ns=recorder.durations(),
            count_by_kind=recorder.counts(),
            pass_ns=tuple(self._pass_ns),
            device_peak_bytes=ledger.peak_bytes,
            device_budget_bytes=ledger.budget_bytes,
            process_peak_bytes=peak_resident_bytes(),
            requests=len(self._prompts),
        )
