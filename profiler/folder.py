"""Making a profile: measure, record, and write the documents of one folder."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median_low

from executor.allocator import tune_process
from executor.backends import make_backend
from executor.device import DTYPES
from executor.source import WeightSource, open_weights
from executor.tokenizer import load_tokenizer
from planner.documents import ModelSpec, ProfileIndex, RoutingTrace
from planner.files import exists, read_regular
from profiler.bench import Tokens
from profiler.effort import Effort
from profiler.measure import Measurement
from profiler.observing import DECODE, observe
from profiler.others import moment, taken, taken_words
from profiler.prompts import bundled_prompts
from profiler.record import Recording, longest_prompt, record_routing
from profiler.tasks import Progress, Task, run_tasks
from profiler.threads import given_threads
from profiler.written import check_out, write_folder, write_routing
from solvers.errors import (
    BudgetError,
    CheckpointError,
    DocumentError,
    OptionError,
    UnsupportedError,
)

__all__ = ["profile_checkpoint", "record_checkpoint"]

_PROMPTS = 64
_SYNTHETIC_LENGTHS = (16, 160)
_NEW_TOKENS = 16
_FEW_PROMPTS, _FEW_LENGTH = 64, 32
_LEAST_LOOKS, _MOST_LOOKS = 3, 7
"""How often short runs are made, at least and at most: as often as takes no more than a third of
what measuring takes. The more often, the fewer passes each, as a small model's passes in one second
say how the machine did in that second."""


def profile_checkpoint(
    checkpoint: Path,
    out: Path,
    *,
    memory_bytes: int,
    device: str = "cpu",
    host_memory_bytes: int | None = None,
    paced_bytes_per_second: int | None = None,
    store: Path | None = None,
    prompts: Sequence[str] | Sequence[Sequence[int]] | None = None,
    seed: int = 0,
    threads: int | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> ProfileIndex:
    """Measure this machine with a checkpoint and record its routing, into a profile folder.

    Parameters
    ----------
    checkpoint
        Folder of the checkpoint.
    out
        Folder to write; an existing profile is replaced once the new one is complete.
    memory_bytes
        Device budget, which profiling itself keeps, too. Sizes that do not fit it are not
        measured; curves are continued beyond their last point.
    device
        ``cpu`` or ``cuda``.
    host_memory_bytes
        With ``cuda``: memory to keep all streamed weights in, read once; None: they are read from
        the disk again and again.
    paced_bytes_per_second
        Bandwidth to hold the disk to.
    store
        A store packed from the checkpoint: what is read from it is measured.
    prompts
        Texts or token ids to record routing on; bundled ones if not given (for a synthetic
        checkpoint its own ``prompts.jsonl``, or random tokens), cut to what the budget holds.
    seed
        Of the order in which prompts are run, and of random tokens.
    threads
        That compute on a CPU; None: it is measured which operations are better off with more than
        one, and with how many.
    effort
        How long to measure.
    progress
        Called with milliseconds spent, milliseconds in all (estimated), and what comes next.

    Returns
    -------
    ProfileIndex
        The folder's index, which is written last.

    Raises
    ------
    InputError
        If the input is bad: a missing or damaged checkpoint or store, a budget below the smallest
        (``BudgetError`` names it), a device or type that cannot run, bad options.
    """
    if host_memory_bytes is not None and device == "cpu":
        raise OptionError(
            "host memory for streamed weights is of use with the device cuda only: leave it out"
        )
    if threads is not None and device != "cpu":
        raise OptionError("a number of threads has no effect on what a GPU computes: leave it out")
    given = None if threads is None else given_threads(threads)
    backend = make_backend(device, link="disk" if host_memory_bytes is None else "h2d")
    _check_budget(memory_bytes)
    if paced_bytes_per_second is not None and paced_bytes_per_second <= 0:
        raise OptionError(
            f"a bandwidth of {paced_bytes_per_second} bytes/s is none; give a positive one"
        )
    check_out(out)
    tune_process()
    with open_weights(checkpoint, store) as source:
        model = _runnable(source)
        if host_memory_bytes is not None and model.total_bytes > host_memory_bytes:
            raise BudgetError(
                f"{host_memory_bytes:,} bytes of host memory do not hold the weights of "
                f"{model.total_bytes:,} bytes; give more, or none, to stream from the disk",
                model.total_bytes,
            )
        if host_memory_bytes is not None and paced_bytes_per_second is not None:
            raise OptionError(
                "a bandwidth for the disk has no effect on weights in host memory: leave out one"
            )
        ids, new_tokens = _recorded(source, prompts, memory_bytes, seed)
        tokens = Tokens([token for prompt in ids for token in prompt], model.vocab_size)
        measurement = Measurement(
            source, memory_bytes, tokens, paced_bytes_per_second, effort or Effort(), backend
        )
        measurement.threads = given
        measuring = measurement.tasks()
        recorded: list[Recording] = []

        def record() -> None:
            recorded.append(
                record_routing(
                    source,
                    ids,
                    memory_bytes,
                    new_tokens=new_tokens,
                    ahead=True,
                    backend=backend,
                    threads=measurement.use,
                )
            )
            tokens.add_decoded(recorded[0].decoded)

        # their beginnings, about as long as benches measured, and all equally
        length = min(median_low(map(len, ids)), _FEW_LENGTH)
        short = [prompt[:length] for prompt in ids if len(prompt) >= length][:_FEW_PROMPTS]

        def observing() -> None:
            measurement.runs += observe(
                source,
                short,
                memory_bytes,
                backend=backend,
                threads=measurement.use,
                decode=_LEAST_LOOKS * DECODE // looks,
            )

        # each pass reads most of the weights, at about 1.5 GB/s
        each = model.total_bytes * 2 // 3
        # runs lie between the measuring: a machine that grows faster or slower, for a second, for
        # half a minute or for good, weighs as much in them as in what they are held against
        looking = Task("short runs", 6 * each + 1_000_000_000, observing)
        looks = _looks(measuring, looking)
        tasks = [
            Task("threads", 20 * measurement.effort.cell_ns, measurement.choose_threads),
            Task("routing of prompts", new_tokens * each + 2_000_000_000, record),
            *_between(measuring, looking, looks),
        ]
        before = moment()
        run_tasks(tasks, progress)
        busy = taken_words(taken(before, moment()))
        hardware = measurement.hardware()
        return write_folder(
            out,
            hardware,
            model,
            measurement.costs(hardware),
            recorded[0].arrays,
            checkpoint=checkpoint,
            store=store,
            store_fingerprint=source.store_fingerprint,
            memory_bytes=memory_bytes,
            notes=() if busy is None else (busy,),
        )


def record_checkpoint(
    checkpoint: Path,
    out: Path,
    *,
    memory_bytes: int,
    device: str = "cpu",
    store: Path | None = None,
    prompts: Sequence[str] | Sequence[Sequence[int]] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> RoutingTrace:
    """Record which experts a checkpoint's tokens choose, and measure nothing.

    Parameters
    ----------
    checkpoint, memory_bytes, device, store, prompts, seed, progress
        As of ``profile_checkpoint``; all prompts are run, however long that takes.
    out
        Folder for ``routing.json`` and ``routing.npz``.

    Raises
    ------
    InputError
        As ``profile_checkpoint``.
    """
    backend = make_backend(device)
    _check_budget(memory_bytes)
    check_out(out, routing_only=True)
    tune_process()
    with open_weights(checkpoint, store) as source:
        model = _runnable(source)
        ids, new_tokens = _recorded(source, prompts, memory_bytes, seed)
        recorded: list[Recording] = []

        def record() -> None:
            recorded.append(
                record_routing(
                    source,
                    ids,
                    memory_bytes,
                    new_tokens=new_tokens,
                    most_seconds=math.inf,
                    ahead=True,
                    backend=backend,
                )
            )

        estimate = new_tokens * model.total_bytes * 2 // 3 + 2_000_000_000
        run_tasks([Task("routing of prompts", estimate, record)], progress)
        return write_routing(out, model, recorded[0].arrays)


def _looks(measuring: Sequence[Task], looking: Task) -> int:
    """How often short runs are made beside this measuring."""
    estimate = sum(task.estimate_ns for task in measuring)
    return min(max(estimate // 3 // looking.estimate_ns, _LEAST_LOOKS), _MOST_LOOKS)


def _between(measuring: Sequence[Task], looking: Task, looks: int) -> list[Task]:
    """The measuring with short runs before it, behind it, and between parts equally long."""
    part = -(-len(measuring) // (looks - 1))
    parts = [measuring[first : first + part] for first in range(0, len(measuring), part)]
    return [looking, *(task for one in parts for task in (*one, looking))]


def _check_budget(memory_bytes: int) -> None:
    if memory_bytes <= 0:
        raise OptionError(f"a memory budget of {memory_bytes} bytes holds nothing; give more")


def _runnable(source: WeightSource) -> ModelSpec:
    model = source.model
    if model.dtype not in DTYPES:
        raise UnsupportedError(f"{model.name}: weights of type {model.dtype} cannot be run yet")
    depth = model.encoder_depth
    if depth and not any(layer.experts for layer in model.layers[depth:]):
        raise UnsupportedError(f"{model.name}: a decoder without experts cannot be profiled yet")
    if depth and not any(layer.experts for layer in model.layers[:depth]):
        raise UnsupportedError(f"{model.name}: an encoder without experts cannot be profiled yet")
    return model


def _recorded(
    source: WeightSource,
    prompts: Sequence[str] | Sequence[Sequence[int]] | None,
    memory_bytes: int,
    seed: int,
) -> tuple[list[list[int]], int]:
    """Token ids of each prompt that routing is recorded on, and how many new tokens for each."""
    model = source.model
    ids = _token_ids(source, prompts, seed)
    new_tokens = min(_NEW_TOKENS, max(model.max_context - max(map(len, ids)), 1))
    if prompts is None:
        # nobody asked for these very prompts: their beginnings do as well
        room = max(longest_prompt(model, new_tokens, memory_bytes), 1)
        ids = [prompt[:room] for prompt in ids]
    return ids, new_tokens


def _token_ids(
    source: WeightSource, prompts: Sequence[str] | Sequence[Sequence[int]] | None, seed: int
) -> list[list[int]]:
    """What to run: token ids of each prompt, cut to what the model's context holds."""
    model, folder = source.model, source.checkpoint.folder
    chosen: list[str | list[int]]
    if prompts is not None:
        chosen = [prompt if isinstance(prompt, str) else list(prompt) for prompt in prompts]
    elif exists(folder / "prompts.jsonl"):
        chosen = _own_prompts(folder / "prompts.jsonl")
    elif model.synthetic:
        chosen = _random_prompts(model.vocab_size, seed)
    else:
        chosen = [*bundled_prompts(_PROMPTS)]
    random.Random(seed).shuffle(chosen)
    if not chosen or not all(chosen):
        raise OptionError("routing is recorded on prompts: give at least one, none of them empty")
    room = max(model.max_context - _NEW_TOKENS, 1)
    tokenizer = load_tokenizer(folder) if any(isinstance(one, str) for one in chosen) else None
    ids = []
    for prompt in chosen:
        if isinstance(prompt, str):
            # what lies beyond the context is not looked at
            short = prompt[: room * tokenizer.longest] if tokenizer is not None else ""
            prompt = tokenizer.encode(short) if tokenizer is not None else []
        if not all(0 <= token < model.vocab_size for token in prompt):
            raise OptionError(f"a prompt has a token outside the vocabulary of {model.vocab_size}")
        if prompt:
            ids.append(prompt[:room])
    if not ids:
        raise OptionError("the prompts hold no token; give longer ones")
    return ids


def _own_prompts(path: Path) -> list[str | list[int]]:
    """A synthetic checkpoint's prompts: ``prompt`` (text) or ``token_ids`` on each line."""
    prompts: list[str | list[int]] = []
    try:
        for line in read_regular(path).decode().splitlines():
            value = json.loads(line)
            prompts.append(value["prompt"] if "prompt" in value else value["token_ids"])
    except (DocumentError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return prompts


def _random_prompts(vocab_size: int, seed: int) -> list[str | list[int]]:
    generator = random.Random(seed)
    return [
        [generator.randrange(vocab_size) for _ in range(generator.randint(*_SYNTHETIC_LENGTHS))]
        for _ in range(_PROMPTS)
    ]
