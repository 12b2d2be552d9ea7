"""The engine: a plan, held against the documents it was made from, and run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from executor.allocator import tune_process
from executor.backends import make_backend
from executor.checks import check_account, check_can_run, check_documents, streams_over
from executor.closing import Closing
from executor.device import Device
from executor.direct import ReadInto, preadv
from executor.generation import Generation
from executor.prompts import Prompts, check_limit, decode, encode
from executor.reference import Reference
from executor.source import WeightSource, open_weights
from executor.tokenizer import Tokenizer, end_tokens, load_tokenizer
from executor.units import check_policy
from executor.warmup import warm_up
from planner.documents import Plan, Trace, document_hash
from planner.routing import TraceArrays
from solvers.errors import OptionError, StaleError

__all__ = ["Engine", "Output"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Output:
    """One prompt and what was generated for it; ``token_ids`` holds new tokens only."""

    prompt: str
    text: str
    token_ids: tuple[int, ...]


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
        with torch.inference_mode():
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
        self._reference = Reference()
        self.outputs: list[Output] = []

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        *,
        checkpoint: Path | None = None,
        store: Path | None = None,
        profile: Path | None = None,
        paced_bytes_per_second: int | None = None,
        verify: bool = False,
        progress: Callable[[int, int], None] | None = None,
        read_into: ReadInto = preadv,
        prompts: Prompts | None = None,
        max_new_tokens: int | None = None,
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
        prompts, max_new_tokens
            What ``generate`` will be asked, to be refused before anything is loaded.

        Raises
        ------
        StaleError
            If the checkpoint, the store or the profile is not the one that the plan was made from.
        BudgetError
            If the plan does not fit its budget.
        UnsupportedError
            If this machine or this moeplan cannot run the plan.
        DocumentError
            If the policy does not fit the model, or the account of memory is not the model's.
        OptionError
            As ``generate``.
        """
        check_limit(plan.workload, max_new_tokens)
        folder = checkpoint or Path(plan.locations.checkpoint)
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
            if prompts is not None:
                encode(prompts, plan.workload, source.model, tokenizer)
            engine = cls(
                plan,
                source,
                paced_bytes_per_second=paced_bytes_per_second,
                verify=verify,
                progress=progress,
            )
            engine._tokenizer = tokenizer
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
    ) -> list[Output]:
        """Greedy continuation of each prompt.

        Parameters
        ----------
        prompts
            Texts, or token ids.
        max_new_tokens
            At most the workload's, which is the default.
        progress
            Called after each pass with new tokens so far and at most to come.

        Raises
        ------
        OptionError
            If prompts are more or longer than the plan's workload, or more tokens are asked for.
        RunError
            If the machine stops the run; ``outputs`` then holds what is there.
        """
        limit = check_limit(self.plan.workload, max_new_tokens, len(prompts))
        ids = encode(prompts, self.plan.workload, self._source.model, self._tokenizer)
        texts = [
            prompt if isinstance(prompt, str) else decode(tokens, self._tokenizer)
            for prompt, tokens in zip(prompts, ids, strict=True)
        ]
        run = self._run = Generation(self._device, ids, limit, self._end_tokens)
        reference = self._reference = Reference()
        reference.take()
        try:
            run.run(progress)
        finally:
            reference.take()
            self.outputs = [
                Output(text, decode(tokens, self._tokenizer), tuple(tokens))
                for text, tokens in zip(texts, run.results, strict=True)
            ]
        self._device.ledger.check_integrity()
        return self.outputs

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
        )

    def routing(self) -> TraceArrays:
        """Which experts each token of the last ``generate`` chose."""
        return self._last_run().routing.arrays()

    def _last_run(self) -> Generation:
        if self._run is None:
            raise OptionError("nothing was run yet; call generate first")
        return self._run

    def close(self) -> None:
        """Close the weight files."""
        self._source.close()
