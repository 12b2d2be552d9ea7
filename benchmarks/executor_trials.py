"""One engine, one setting, one fresh process: what the cells of the executor's benchmark are of."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.capped import EXIT_CODE, Limits, evict, run_capped
from benchmarks.clairvoyant import decode_bytes
from executor.caps import PROCESS_BYTES
from executor.synth.weights import Walk
from planner.documents import ModelSpec, Plan, Workload, write_document
from planner.entries import BASELINES
from planner.looking_ahead import with_predictors
from planner.profiles import Profile, load_profile
from planner.solve import make_plan
from solvers.errors import RunError

__all__ = ["QUANTIZED", "Bench", "Trial"]

PEERS = Path(__file__).resolve().parent / "peers"
QUANTIZED = ("int8", "int4")
_STORES = ("none", "exact", *QUANTIZED)
_READ = (*(f"store-{name}" for name in _STORES), "offload", "weights.gguf")
_MOST_PROMPTS = 256
_TRANSFORMERS_BYTES = 600 << 20
"""What a process of transformers takes beside weights and page cache, about."""
_PROFILE_SECONDS = 1800.0
_FEW = 64
"""Requests that every engine has memory for."""

Document = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """An engine's command and what it runs under.

    Attributes
    ----------
    engine, setting
        Names.
    command
        Without prompts, tokens and ``--out``.
    batch
        Requests that it runs: those of the cell, or as many as it takes at once.
    plan, model
        moeplan's, and what it is a plan for.
    memory_bytes, read_bytes_per_second
        Limits, or None.
    """

    engine: str
    setting: str
    command: tuple[str, ...]
    batch: int
    memory_bytes: int | None
    read_bytes_per_second: int | None
    plan: Plan | None = None
    model: ModelSpec | None = None

    def key(self, checkpoint: str, new_tokens: int) -> str:
        """What tells one from another; equal policies under equal limits are one trial."""
        what = self.setting if self.plan is None else _policy_hash(self.plan, self.model)
        who = self.engine if self.plan is None else "plan"
        limits = f"{self.memory_bytes} {self.read_bytes_per_second}"
        return f"{checkpoint} {limits} {self.batch}+{new_tokens} {who} {what}"


def _policy_hash(plan: Plan, model: ModelSpec | None) -> str:
    how: tuple[object, ...] = (plan.policy, None if model is None else model.stored)
    if model is not None and model.quantized is not None:
        how = (*how, model.quantized)
    return hashlib.sha256(repr(how).encode()).hexdigest()[:12]


class Bench:
    """One checkpoint, everything made of it, and its trials.

    Parameters
    ----------
    name
        Of the checkpoint.
    config, layers
        What it is made from.
    work
        Folder for all of it, which stays.
    prompt_tokens, new_tokens
        Of each request.
    seconds
        Limit of a trial.
    peers_python
        An interpreter with ``peers/requirements.txt``; None: an environment is made in ``work``.
    """

    def __init__(
        self,
        name: str,
        config: Path,
        layers: int | None,
        work: Path,
        *,
        prompt_tokens: int,
        new_tokens: int,
        seconds: float,
        peers_python: Path | None,
    ) -> None:
        self.name, self._config, self._layers = name, config, layers
        self._work, self.folder = work, work / name
        self.prompt_tokens, self.new_tokens, self._seconds = prompt_tokens, new_tokens, seconds
        self._python = peers_python
        self.folder.mkdir(parents=True, exist_ok=True)
        self._profiles: dict[tuple[int | None, str], Profile] = {}

    # --- what is made once --------------------------------------------------------------------

    @cached_property
    def checkpoint(self) -> Path:
        """The checkpoint."""
        out = self.folder / "checkpoint"
        if not (out / "config.json").exists():
            layers = () if self._layers is None else ("--layers", str(self._layers))
            _moeplan("synth", str(self._config), *layers, "--out", str(out))
        return out

    @cached_property
    def weights_bytes(self) -> int:
        """Bytes of the checkpoint's weight files."""
        return sum(file.stat().st_size for file in self.checkpoint.glob("*.safetensors"))

    def store(self, compress: str) -> Path:
        """The checkpoint, packed: ``none`` or ``exact``, or quantized as ``int8`` or ``int4``."""
        out = self.folder / f"store-{compress}"
        if not (out / "store.json").exists():
            option = "--quantize" if compress in QUANTIZED else "--compress"
            _moeplan("pack", str(self.checkpoint), str(out), option, compress)
        return out

    @cached_property
    def gguf(self) -> Path:
        """The checkpoint as llama.cpp has it."""
        out = self.folder / "weights.gguf"
        if not out.exists():
            part = out.with_suffix(".part")
            _run(sys.executable, str(PEERS / "gguf_file.py"), str(self.checkpoint), str(part))
            part.rename(out)
        return out

    @cached_property
    def offload(self) -> Path:
        """The checkpoint as accelerate has it."""
        out = self.folder / "offload"
        if not (out / "index.json").exists():
            _run(*self._hugging_face, "--prepare", "--offload", str(out), *self._asked(1))
        return out

    @cached_property
    def llama_python(self) -> str:
        """An interpreter with the peers' requirements."""
        if self._python is not None:
            return str(self._python)
        out = self._work / "peers"
        python = out / "bin" / "python"
        if not (out / "installed").exists():
            venv.create(out, with_pip=True, clear=True)
            _run(str(python), "-m", "pip", "-q", "install", "-r", str(PEERS / "requirements.txt"))
            (out / "installed").touch()
        return str(python)

    @cached_property
    def _prompts(self) -> list[list[int]]:
        config = json.loads((self.checkpoint / "config.json").read_text(encoding="utf-8"))
        # at other places of the walk than the checkpoint's own prompts, which are profiled
        walk = Walk(config["vocab_size"], config["hidden_size"], 0.0, seed=1)
        prompts = walk.prompts(_MOST_PROMPTS, self.prompt_tokens)
        random.Random(0).shuffle(prompts)
        return prompts

    def prompts(self, count: int) -> Path:
        """The first ``count`` prompts, in a file."""
        out = self.folder / f"prompts-{count}x{self.prompt_tokens}.json"
        out.write_text(json.dumps(self._prompts[:count]), encoding="utf-8")
        return out

    def profile(self, throttle: int | None, memory_bytes: int, compress: str = "none") -> Profile:
        """Measured on the disk as it is held."""
        if (throttle, compress) not in self._profiles:
            out = self.folder / f"profile-{throttle or 'free'}-{compress}"
            if not (out / "profile.json").exists():
                command = [sys.executable, "-m", "moeplan", "profile", str(self.checkpoint)]
                command += ["--memory", str(memory_bytes), "--store", str(self.store(compress))]
                command += ["--out", str(out)]
                limits = Limits(None, throttle, _PROFILE_SECONDS)
                ended = run_capped(command, out / "profile.json", limits, self.folder)
                if ended.reason:
                    raise RunError(f"profiling {self.name}: {ended.reason}")
            self._profiles[throttle, compress] = load_profile(out)
        return self._profiles[throttle, compress]

    # --- trials -------------------------------------------------------------------------------

    def own(
        self,
        engine: str,
        solver: str,
        profile: Profile,
        requests: int,
        limits: tuple[int | None, int | None],
    ) -> Trial:
        """A plan of one solver's; without a cap, with everything in memory."""
        cap, throttle = limits
        budget = 2 * self.weights_bytes + (8 << 30) if cap is None else cap - PROCESS_BYTES
        plan = make_plan(
            profile,
            Workload(requests, self.prompt_tokens, self.new_tokens),
            memory_bytes=budget,
            solver=solver,
        )
        if cap is not None and solver not in BASELINES:
            plan = with_predictors(plan, profile)
        out = self.folder / f"plan-{engine.replace(' ', '-')}.json"
        write_document(plan, out)
        files = ("--routing", self.folder / "routing.npz", "--trace", self.folder / "trace.json")
        command = (sys.executable, PEERS / "own.py", "--plan", out, *files)
        policy = plan.policy
        setting = f"{plan.solver}: {policy.n_batches} x {policy.batch_size}, {policy.slots} slots"
        words = tuple(map(str, command))
        return Trial(engine, setting, words, requests, cap, throttle, plan, profile.model)

    def accelerate(self, cap: int, throttle: int | None, requests: int) -> Iterator[Trial]:
        """Several sizes of what stays in memory, and of batches."""
        room = max(cap - _TRANSFORMERS_BYTES, 0)
        for batch in _batches(requests):
            for share in (1.0, 0.5):
                kept = max(int(room * share), 32 << 20)
                command = (*self._hugging_face, "--offload", str(self.offload))
                command += ("--cpu-memory", str(kept))
                setting = f"{kept >> 20} MiB in memory, batches of {batch}"
                yield Trial("accelerate", setting, command, batch, cap, throttle)

    def llama_cpp(self, cap: int, throttle: int | None, requests: int) -> Iterator[Trial]:
        """With as much computed at once as prompts fill."""
        python, model = self.llama_python, str(self.gguf)
        for batch in _batches(requests):
            ubatch = 2048 if batch * self.prompt_tokens > 512 else 512
            program = (python, str(PEERS / "llama_cpp.py"))
            command = (*program, "--model", model, "--ubatch", str(ubatch))
            setting = f"ubatch {ubatch}, {batch} at once"
            yield Trial("llama.cpp", setting, command, batch, cap, throttle)

    def transformers(self, requests: int) -> Iterator[Trial]:
        """Everything in memory, without a cap."""
        yield Trial("transformers", "no cap", self._hugging_face, requests, None, None)

    def run(self, trial: Trial) -> Document:
        """Run a trial with cold caches: a document with rates, or the reason why there are none."""
        evict(
            [
                self.checkpoint,
                *(self.folder / name for name in _READ),
            ]
        )
        ended = run_capped(
            [*trial.command, *self._asked(trial.batch)],
            self._out,
            Limits(trial.memory_bytes, trial.read_bytes_per_second, self._seconds),
            self.folder,
        )
        found: Document = {
            "setting": trial.setting,
            "batch": trial.batch,
            "reason": ended.reason,
            "peak_bytes": ended.peak_bytes,
            "load_average": round(os.getloadavg()[0], 2),
            "others_cores": round(ended.others_cores, 2),
        }
        if ended.document is None:
            return found
        document = ended.document
        tokens = document.pop("tokens")
        total, decode = (
            document["prefill_seconds"] + document["decode_seconds"],
            document["decode_seconds"],
        )
        new = sum(map(len, tokens))
        found |= document
        found["tokens_per_second"] = new / total
        found["decode_tokens_per_second"] = (new - len(tokens)) / decode if decode else None
        found["agreement"] = self._agreement(trial, tokens)
        if trial.plan is not None and trial.model is not None and trial.memory_bytes is not None:
            policy, workload = trial.plan.policy, trial.plan.workload
            with np.load(self.folder / "routing.npz") as routing:
                found["clairvoyant_bytes"] = decode_bytes(
                    trial.model, policy, workload, dict(routing)
                )
        return found

    def _agreement(self, trial: Trial, tokens: list[list[int]]) -> float | None:
        """Share of tokens that are those of moeplan with everything in memory."""
        file = self.folder / f"tokens-{self.prompt_tokens}+{self.new_tokens}.json"
        if trial.plan is not None and trial.memory_bytes is None:
            known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
            file.write_text(json.dumps(max(known, tokens, key=len)), encoding="utf-8")
        if not file.exists():
            return None
        known = json.loads(file.read_text(encoding="utf-8"))
        pairs = [
            (one, other)
            for ours, theirs in zip(known, tokens, strict=False)
            for one, other in zip(ours, theirs, strict=False)
        ]
        return sum(one == other for one, other in pairs) / len(pairs) if pairs else None

    @property
    def _hugging_face(self) -> tuple[str, ...]:
        return (
            sys.executable,
            str(PEERS / "hugging_face.py"),
            "--checkpoint",
            str(self.checkpoint),
        )

    def _asked(self, count: int) -> tuple[str, ...]:
        prompts, out = str(self.prompts(count)), str(self._out)
        return ("--prompts", prompts, "--new-tokens", str(self.new_tokens), "--out", out)

    @property
    def _out(self) -> Path:
        return self.folder / "run.json"


def _batches(requests: int) -> list[int]:
    """All at once, and by halves down to what every engine has memory for."""
    sizes = [requests]
    while sizes[-1] > _FEW:
        sizes.append(sizes[-1] // 2)
    return sizes


def _moeplan(*words: str) -> None:
    _run(sys.executable, "-m", "moeplan", *words)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise RunError(f"{' '.join(command[:4])}: {EXIT_CODE} {done.returncode}: {said}"[:300])
