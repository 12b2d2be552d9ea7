"""Pairs planned on Ray: processes that it starts here, or a cluster's."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from moeplan.sweeps.task import ATTEMPTS, ONE_THREAD, Answers, Packed, Task, answer, died
from solvers.errors import OptionError, RunError

__all__ = ["ray_module", "run_on_ray"]

_PER_CORE = 2
"""Tasks in flight: one that runs and one that waits."""
_STORE_BYTES = 256 << 20
"""Of Ray's objects, where it is started here: a few profiles, of megabytes each."""
_REACHED_SECONDS = 10.0
_CODE = ("solvers", "planner", "moeplan")
"""What workers are given; they import nothing else of this program."""


def ray_module(address: str | None) -> ModuleType:
    """Ray, for a cluster's address or to be started here, kept from calling home.

    Raises
    ------
    OptionError
        If it is not installed, with the command that installs it.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # what a later Ray will do about GPUs; nothing here asks for one
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is None and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        # read when it loads; by itself Ray would write a token into the user's home
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise OptionError(
            f"--engine ray needs {error.name}, which is not installed: "
            "pip install 'moeplan[cluster]'"
        ) from error


def run_on_ray(tasks: Iterator[Task], workers: int, address: str | None) -> Answers:
    """Carry out tasks on Ray; the answers come as they are found.

    Parameters
    ----------
    tasks
        Drawn as there is room: at most two for each core are in flight.
    workers
        Cores, where Ray is started here.
    address
        Of a cluster, as ``ray.init`` takes it; None: Ray is started here, and ended.

    Raises
    ------
    OptionError
        If Ray is not installed.
    RunError
        If it cannot be started or reached, or its workers cannot run this program.
    """
    ray = ray_module(address)
    with contextlib.ExitStack() as stack:
        _connect(ray, stack, workers, address)
        remote = ray.remote(answer).options(num_cpus=1, max_retries=ATTEMPTS - 1)
        room = _PER_CORE * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        sent: dict[str, Any] = {}
        flying: dict[Any, Task] = {}
        more = True
        while True:
            while more and len(flying) < room:
                task = next(tasks, None)
                more = task is not None
                if task is not None:
                    profile = _sent(ray, sent, task.packed)
                    flying[remote.remote(profile, task.inputs)] = task
            if not flying:
                return
            ready, _ = ray.wait(list(flying), num_returns=1)
            for reference in ready:
                yield flying.pop(reference), _answered(ray, reference)


def _connect(
    ray: ModuleType, stack: contextlib.ExitStack, workers: int, address: str | None
) -> None:
    """Start or reach Ray; it is left, or ended, with ``stack``."""
    options: dict[str, Any] = {"address": address}
    if address is None:
        # its files would stay in the system's folder for such otherwise
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="moeplan-ray-", ignore_cleanup_errors=True)
        )
        options = {
            "address": "local",
            "num_cpus": workers,
            "num_gpus": 0,
            "_node_ip_address": "127.0.0.1",
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
            "_temp_dir": folder,
        }
    else:
        _check_reachable(address)
    code = [str(Path(str(importlib.import_module(name).__file__)).parent) for name in _CODE]
    environment = {"py_modules": code, "excludes": ["__pycache__"], "env_vars": ONE_THREAD}
    stack.callback(ray.shutdown)
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR", runtime_env=environment)
    except ValueError as error:
        if address is None:
            raise
        raise OptionError(f"--ray-address {address}: {error}; write HOST:PORT, or auto") from error
    except (OSError, RuntimeError, ImportError, ray.exceptions.RayError) as error:
        what = "Ray could not be started" if address is None else f"--ray-address {address}"
        raise RunError(f"{what}: {error}") from error


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACHED_SECONDS).close()
    except OSError as error:
        raise RunError(
            f"--ray-address {address} cannot be reached: {error.strerror or error}"
        ) from error


def _sent(ray: ModuleType, sent: dict[str, Any], packed: Packed) -> Any:
    """Ray's reference to a profile; only the newest is kept, as pairs come in order."""
    if packed.digest not in sent:
        sent.clear()
        sent[packed.digest] = ray.put(packed)
    return sent[packed.digest]


def _answered(ray: ModuleType, reference: Any) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        # pairs are refused in their answers: this is the worker's own trouble, and that of all
        raise RunError(f"a worker of Ray cannot run this program: {error.cause!r}") from error
    except ray.exceptions.RuntimeEnvSetupError as error:
        raise RunError(f"Ray could not give its workers this program: {error}") from error
    except ray.exceptions.RayError as error:
        return died(type(error).__name__)
    return said
