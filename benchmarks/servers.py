"""What the service's benchmark runs: a server that can be killed, and a profile of any size."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.catalogue import load_machine
from planner.drawn_routing import draw_routing
from planner.model_spec import read_model
from planner.offline import choose_dtype, offline_profile
from planner.profiles import Profile


@dataclass
class Server:
    """A ``moeplan serve`` that runs."""

    process: subprocess.Popen[str]
    url: str

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        found: list[int] = []
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            try:
                found += [int(pid) for pid in path.read_text().split()]
            except OSError:  # a thread that has just ended
                continue
        return found


@contextmanager
def serving(store: str, log: Path, *options: Any) -> Iterator[Server]:
    """A server on a free port of the loopback."""
    argv = [sys.executable, "-m", "moeplan", "serve", "--port", "0", "--json", "--store", store]
    with log.open("a") as errors:
        process = subprocess.Popen(
            [*argv, *map(str, options)], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    if process.stdout is None:
        raise RuntimeError("the server has no output")
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start:\n{log.read_text()}")
        yield Server(process, json.loads(line)["url"])
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def profile(folder: Path, layers: int, hidden: int, memory_bytes: int) -> Profile:
    """A Mixtral of any size on a data sheet's machine, its routing drawn."""
    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    path = folder / "model"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    model, machine = read_model(path), load_machine("a10")
    drawn = draw_routing("zipf:1.0", model, prompt_tokens=32, seed=0, series=None)
    dtype = choose_dtype(model, machine, None)
    return offline_profile(path, model, machine, drawn, dtype=dtype, memory_bytes=memory_bytes)
