"""The engine: a plan, held against the documents it was made from, and run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch

from executor.allocator import tune_process
from executor.backends import make_backend
from executor.checks import (
    check_account,
    check_can_run,
    check_documents,
    check_sampling,
    streams_over,
)
from executor.closing import Closing
from executor.device import Device
from executor.direct import ReadInto, preadv
from executor.failures import out_of_memory
from executor.generation import Generation
from executor.outputs import Output, Piece
from executor.prefetch import learned_tables
from executor.prompts import Prompts, check_limit, check_prompts, check_stop, decode, encode
from executor.reference import Reference
from executor.routing import Recorded, check_recorded
from executor.sampling import Sampler, Sampling
from executor.source import WeightSource, open_weights
from executor.texts import TextStream
from executor.tokenizer import Tokenizer, end_tokens, load_tokenizer
from executor.units import check_policy
from executor.warmup import warm_up
from planner.documents import Plan, Trace, document_hash
from planner.predictors import Tables
from planner.routing import TraceArrays
from solvers.errors import OptionError, RunError, StaleError

__all__ = ["Engine"]

_log = logging.getLogger(__name__)


class _Asked(NamedTuple):
    """One call, checked."""

    prompts: list[str]
    run: Generation
    texts: list[TextStream] | None


class Engine(Closing):
    """Carries out one plan. Use as a context manager, or call ``close``.

    Attributes
    ----------
    outputs
        What the last ``generate`` has brought so far; kept when it fails.
    """

    def __init__(
        self,
        plan: Plan,
        source: WeightSource,
        *,
        paced_bytes_per_second: int | None = None,
        verify: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        tune_process()
        self.plan = plan
        self._source = source
        self._paced = paced_bytes_per_second
        if not source.direct:
            _log.warning(
                "%s: its file system refuses direct reads; pages are dropped after each read",
                source.checkpoint.folder,
            )
        with torch.inference_mode(), out_of_memory("loading"):
            self._device = Device(
                source,
                plan.policy,
                plan.workload,
                plan.memory["device"].capacity_bytes,
                paced_bytes_per_second=paced_bytes_per_second,
                verify=verify,
                progress=progress,
                backend=make_backend(plan.device, link=streams_over(plan)),
            )
            warm_up(self._device)
        self._end_tokens = end_tokens(source.checkpoint)
        self._tokenizer = cache(partial(load_tokenizer, source.checkpoint.folder))
        self._run: Generation | None = None
        self._tables: Tables | None = None
        self._busy = threading.Lock()
        self._reference = Reference(threads=plan.policy.threads)
        self.outputs: list[Output] = []

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        *,
        checkpoint: Path | str | None = None,
        store: Path | str | None = None,
        profile: Path | str | None = None,
        paced_bytes_per_second: int | None = None,
        verify: bool = False,
        progress: Callable[[int, int], None] | None = None,
        read_into: ReadInto = preadv,
        prompts: Prompts | None = None,
        max_new_tokens: int | Sequence[int] | None = None,
        sampling: Sampling | None = None,
        stop: Sequence[int | str] = (),
    ) -> Engine:
        """Check a plan against what lies on this machine, and load its residents.

        Parameters
        ----------
        plan
            What to carry out.
        checkpoint, store, profile
            Where the plan's inputs lie; the plan's own hints where not given. The profile is
            held against the plan where it is there.
        paced_bytes_per_second
            Bandwidth to hold reads to.
        verify
            Hold everything read from a store against its checksum.
        progress
            Called with bytes loaded and to be loaded.
        read_into
            For tests that inject faults.
        prompts, max_new_tokens, sampling, stop
            What ``generate`` will be asked, to be refused before anything is loaded.

        Raises
        ------
        StaleError
            If the checkpoint, the store or the profile is not the one that the plan was made from.
        BudgetError
            If the plan does not fit its budget, or a control group allows the process less.
        RunError
            If the machine does not have the memory, or a read fails.
        UnsupportedError
            If this machine or this moeplan cannot run the plan.
        DocumentError
            If the policy does not fit the model, or the account of memory is not the model's.
        OptionError
            As ``generate``.
        """
        count = None if prompts is None else check_prompts(prompts)
        check_limit(plan.workload, max_new_tokens, count)
        folder = Path(checkpoint or plan.locations.checkpoint)
        profile = None if profile is None else Path(profile)
        check_can_run(plan, folder)
        if store is None and plan.inputs.store_fingerprint is not None:
            if plan.locations.store is None:
                raise StaleError(
                    "store", "the plan was made with a store, but does not say where: plan again"
                )
            store = Path(plan.locations.store)
        source = open_weights(folder, store, read_into=read_into)
        try:
            check_documents(plan, source, profile)
            check_policy(source.model, plan.policy)
            check_account(plan, source.model)
            tokenizer = cache(partial(load_tokenizer, source.checkpoint.folder))
            check_stop(stop, source.model.vocab_size, tokenizer)
            if sampling is not None:
                check_sampling(sampling, plan, source.model)
            if prompts is not None:
                encode(prompts, plan.workload, source.model, tokenizer)
            tables = learned_tables(plan, source.model, profile)
            engine = cls(
                plan,
                source,
                paced_bytes_per_second=paced_bytes_per_second,
                verify=verify,
                progress=progress,
            )
            engine._tokenizer, engine._tables = tokenizer, tables
            return engine
        except BaseException:
            source.close()
            raise

    # --- running ------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompts,
        max_new_tokens: int | Sequence[int] | None = None,
        progress: Callable[[int, int], None] | None = None,
        *,
        sampling: Sampling | None = None,
        stop: Sequence[int | str] = (),
        recorded: Recorded | None = None,
    ) -> list[Output]:
        """Continue each prompt.

        Parameters
        ----------
        prompts
            Texts, or token ids. The place of one that has ended is taken by the next.
        max_new_tokens
            At most the workload's, which is the default; for all alike, or for each.
        progress
            Called after each pass with new tokens so far and at most to come.
        sampling
            How tokens are drawn; without it the likeliest is taken.
        stop
            Token ids and texts that end a sequence, beside the checkpoint's own end tokens. They
            are still part of the output, as with transformers.
        recorded
            What an earlier run of the same prompts chose (``recording``), for a plan that is
            clairvoyant: its eviction is ``belady``, or a layer's predictor. Where this run chooses
            otherwise, it is slower and no more.

        Raises
        ------
        OptionError
            If prompts are more or longer than the plan's workload, more tokens are asked for, there
            is no room to draw, the recording is missing or of no use, or the engine is at work.
        RunError
            If the machine stops the run; ``outputs`` then holds what is there. ``CancelledError``
            after ``cancel``.
        """
        asked = self._ask(prompts, max_new_tokens, sampling, stop, pieces=False, recorded=recorded)
        with self._kept(asked):
            asked.run.run(progress)
        return self.outputs

    def stream(
        self,
        prompts: Prompts,
        max_new_tokens: int | Sequence[int] | None = None,
        *,
        sampling: Sampling | None = None,
        stop: Sequence[int | str] = (),
    ) -> Iterator[Piece]:
        """As ``generate``, token by token as they come.

        The texts of a request's pieces together are its output's. Nothing runs between two calls of
        ``next`` but copies ahead; closing the iterator ends the run, and ``outputs`` holds what is
        there.

        Raises
        ------
        OptionError, RunError
            As ``generate``.
        """
        return self._stream(self._ask(prompts, max_new_tokens, sampling, stop, pieces=True))

    def _stream(self, asked: _Asked) -> Iterator[Piece]:
        texts = asked.texts or []
        with self._kept(asked), closing(asked.run.passes()) as passes:
            for grown in passes:
                for member, token, ended in grown:
                    stream = texts[member]
                    yield Piece(member, token, stream.finish() if ended else stream.take())

    def cancel(self) -> None:
        """Let the run that goes on in another thread end soon, with ``CancelledError`` there.

        Does nothing where none goes on.
        """
        run = self._run
        if run is not None and self._busy.locked():
            run.cancel()

    def _ask(
        self,
        prompts: Prompts,
        max_new_tokens: int | Sequence[int] | None,
        sampling: Sampling | None,
        stop: Sequence[int | str],
        *,
        pieces: bool,
        recorded: Recorded | None = None,
    ) -> _Asked:
        plan, model = self.plan, self._source.model
        check_recorded(recorded, model, plan.policy)
        limit = check_limit(plan.workload, max_new_tokens, check_prompts(prompts))
        ids = encode(prompts, plan.workload, model, self._tokenizer)
        if sampling is not None:
            check_sampling(sampling, plan, model)
        ends, words = check_stop(stop, model.vocab_size, self._tokenizer)
        if self._run is not None and self._run.stuck:
            raise RunError("a read of an earlier run has not come back: close this engine")
        told = partial(decode, tokenizer=self._tokenizer)
        texts = [TextStream(told, words) for _ in ids] if pieces or words else None
        run = Generation(
            self._device,
            ids,
            limit,
            self._end_tokens | ends,
            sampler=None if sampling is None else Sampler(sampling),
            texts=texts,
            recorded=recorded,
            tables=self._tables,
        )
        return _Asked(
            [
                prompt if isinstance(prompt, str) else told(tokens)
                for prompt, tokens in zip(prompts, ids, strict=True)
            ],
            run,
            texts,
        )

    @contextmanager
    def _kept(self, asked: _Asked) -> Iterator[None]:
        """While a run goes on: no other may, and what it brings is kept however it ends."""
        if not self._busy.acquire(blocking=False):
            raise OptionError("the engine is at work: end or close that run first")
        try:
            run = self._run = asked.run
            reference = self._reference = Reference(threads=self.plan.policy.threads)
            reference.take()
            try:
                yield
            finally:
                reference.take()
                self.outputs = [
                    Output(prompt, decode(ids, self._tokenizer), tuple(ids), number in run.ended)
                    for number, (prompt, ids) in enumerate(
                        zip(asked.prompts, run.results, strict=True)
                    )
                ]
        finally:
            self._busy.release()
        self._device.ledger.check_integrity()

    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer.

        Raises
        ------
        CheckpointError
            If it has none.
        """
        return self._tokenizer()

    # --- what a run leaves --------------------------------------------------------------------

    def trace(self) -> Trace:
        """What the last ``generate`` did, also where it failed.

        Raises
        ------
        OptionError
            If nothing was run yet.
        """
        run = self._last_run()
        totals = run.totals()
        return Trace(
            plan_hash=document_hash(self.plan),
            device=self.plan.device,
            paced_bytes_per_second=self._paced,
            kept_passes=min(run.recorder.kept_passes, totals.passes),
            totals=totals,
            timeline=run.recorder.timeline(),
            reference_ns=tuple(self._reference.samples),
            inputs=self.plan.inputs,
            chunk_bytes=self.plan.policy.chunk_bytes,
            forms=None
            if self._source.model.forms is None
            else tuple(layer.forms for layer in self.plan.policy.layers),
            raw=tuple(layer.raw for layer in self.plan.policy.layers)
            if self._source.both
            else None,
        )

    def routing(self) -> TraceArrays:
        """Which experts each token of the last ``generate`` chose."""
        return self._last_run().routing.arrays()

    def recording(self) -> Recorded:
        """The same, pass by pass."""
        return self._last_run().routing.passes()

    def _last_run(self) -> Generation:
        if self._run is None:
            raise OptionError("nothing was run yet; call generate first")
        return self._run

    def close(self) -> None:
        """Close the weight files."""
        self._source.close()
        if self._device.spill is not None:
            self._device.spill.close()
