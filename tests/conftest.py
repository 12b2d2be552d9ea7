"""For all tests: neither a clock nor chance of hypothesis decides whether one passes (CI draws the
same examples each time; by hand new ones are drawn), Control-C interrupts, and what was imported is
not looked through again and again for garbage."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "no clock",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("no clock")

# a shell's background jobs (``make test &``) ignore it, and so would every process that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = (
    *("moeplan/test_sweep_pairs.py", "executor/test_memory.py", "moeplan/test_killed.py"),
    *("moeplan/service/test_killed_service.py", "moeplan/service/test_base_install.py"),
    *("moeplan/service/test_pages.py", "moeplan/service/test_container.py"),
    *("moeplan/service/test_fuzz.py", "moeplan/test_planning_commands.py"),
    *("profiler/test_folder.py", "profiler/test_benchmark.py", "executor/test_quantized.py"),
    *("executor/test_parallel.py", "executor/test_machines.py", "moeplan/test_offload.py"),
)
"""Files that take long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first: of two processes none is left alone with one at the end."""
    items.sort(key=lambda item: not item.nodeid.partition("::")[0].endswith(LONG))


def pytest_collection_finish() -> None:
    """Leave what is loaded by now (torch, transformers) out of every collection of garbage."""
    gc.collect()
    gc.freeze()
