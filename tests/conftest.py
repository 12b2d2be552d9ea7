"""For all tests: no clock of hypothesis decides whether one passes, Control-C interrupts, and what
was imported is not looked through again and again for garbage."""

from __future__ import annotations

import gc
import signal

from hypothesis import HealthCheck, settings

settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")

# a shell's background jobs (``make test &``) ignore it, and so would every process that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what is loaded by now (torch, transformers) out of every collection of garbage."""
    gc.collect()
    gc.freeze()
