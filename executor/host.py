"""Experts computed in host memory by a worker, while the device computes others."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from executor.device import Device
from executor.operations import feed_rows
from executor.recorder import Recorder
from executor.units import Unit
from planner.documents import Event

__all__ = ["HostWorker"]


class _Done(NamedTuple):
    """Outputs of one expert, float32 [rows, hidden], and when they were computed."""

    outputs: torch.Tensor
    begin_ns: int
    end_ns: int


class HostWorker:
    """Computes a layer's experts of the host, one after another.

    Parameters
    ----------
    device
        Whose units lie in host memory.
    recorder
        Where it is recorded what the host computed.
    """

    def __init__(self, device: Device, recorder: Recorder) -> None:
        self._device, self._recorder = device, recorder
        self._pool = ThreadPoolExecutor(1, "moeplan-host")
        self._pending: list[tuple[Unit, Future[_Done]]] = []

    def begin(self, units: tuple[Unit, ...]) -> None:
        """The router has spoken: bring the units' rows here, and compute."""
        for unit in units:
            rows = self._device.operations.host_rows(unit.item)
            self._pending.append((unit, self._pool.submit(self._compute, unit, rows)))

    @torch.inference_mode()
    def _compute(self, unit: Unit, rows: torch.Tensor) -> _Done:
        begin = time.perf_counter_ns()
        outputs = feed_rows(self._device.adapter, rows, self._device.host_expert(unit))
        return _Done(outputs, begin, time.perf_counter_ns())

    @property
    def ready(self) -> bool:
        """Whether nothing is under way."""
        return all(future.done() for _, future in self._pending)

    def wait(self) -> Unit:
        """Wait until all have been computed; returns the last."""
        try:
            for _, future in self._pending:
                future.result()
        finally:
            # an error holds the frames that it went through, which must not hold it
            del future
        return self._pending[-1][0]

    def add(self, pass_index: int) -> None:
        """Add the outputs to their tokens' sums, once ``wait`` has come back."""
        pending, self._pending = self._pending, []
        origin = self._recorder.origin_ns
        for unit, future in pending:
            done = future.result()
            self._device.operations.add_outputs(unit.item, done.outputs)
            times = done.begin_ns - origin, done.end_ns - origin
            at = pass_index, unit.stage, unit.item
            self._recorder.beside(Event("host_expert", "cpu", *at, *times, len(done.outputs), 0))

    def close(self) -> None:
        """End the worker, behind what it computes."""
        self._pool.shutdown(cancel_futures=True)
        self._pending.clear()
