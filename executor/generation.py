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
from planner.documents import TraceTotals
from solvers.errors import RunError

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
    ) -> None:
        self._device, self._prompts = device, prompts
        self._limit, self._end_tokens = limit, end_tokens
        self.results: list[list[int]] = [[] for _ in prompts]
        size = device.state.capacity
        self._groups = [
            range(at, min(at + size, len(prompts))) for at in range(0, len(prompts), size)
        ]
        self.routing = RoutingLog(device.source.model)
        self.recorder = device.memory.recorder()
        self._schedule = Schedule(device.policy, device.units, len(self._groups) * limit)
        self._transfers = device.memory.transfers(self._schedule, device.copy, self.recorder)
        self._runtime = Runtime(device, self._transfers, self.recorder, self._on_routed)
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
        fresh = [self._prompts[index] for index in members]
        past = [0] * len(members)
        for step in range(self._limit):
            counts = [len(tokens) for tokens in fresh]
            if not any(counts):
                return
            begin = time.perf_counter_ns()
            self._device.operations.begin(counts, past)
            tokens = [token for some in fresh for token in some]
            alive, following = self._runtime.run_pass(len(self._pass_ns), tokens)
            self._check_finite([members[index] for index in alive])
            past = [before + count for before, count in zip(past, counts, strict=True)]
            fresh = [[] for _ in members]
            for index, token in zip(alive, following, strict=True):
                self.results[members[index]].append(token)
                if token not in self._end_tokens:
                    fresh[index] = [token]
            elapsed = time.perf_counter_ns() - begin
            self._pass_ns.append(elapsed)
            if step:
                self._decode_ns += elapsed
            else:
                self._prefill_ns += elapsed
            if progress is not None:
                progress(sum(map(len, self.results)), self._limit * len(self._prompts))

    def _check_finite(self, prompts: list[int]) -> None:
        broken = self._device.operations.not_finite()
        if broken:
            raise RunError(
                f"pass {len(self._pass_ns)}: the logits of prompt {prompts[broken[0]] + 1} are NaN "
                "or infinite, so no token can be chosen: the checkpoint's weights are damaged, or "
                f"too large for its type ({len(broken)} of {len(prompts)} sequences)"
            )

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
