"""What a plan is held against before it runs."""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

import torch

from executor.allocator import usable_cores
from executor.device import DTYPES
from executor.memory import Link
from executor.sampling import SCRATCH_BYTES, Sampling
from executor.source import WeightSource
from planner.documents import Inputs, ModelSpec, Plan, Workload
from planner.files import exists, is_file
from planner.kv import kv_stays
from planner.memory import account_device, group_sequences, operation_bytes, smallest_budget
from planner.profiles import load_profile
from planner.span import check_span
from solvers.counting import counted
from solvers.errors import (
    BudgetError,
    DocumentError,
    InputError,
    OptionError,
    StaleError,
    UnsupportedError,
)

__all__ = [
    "check_account",
    "check_can_run",
    "check_documents",
    "check_sampling",
    "check_source",
    "lies_at",
    "streams_over",
]

_log = logging.getLogger(__name__)


def check_can_run(plan: Plan, checkpoint: Path) -> None:
    """Refuse what no checkpoint could make runnable, before any is opened.

    Raises
    ------
    UnsupportedError
        If the plan is for a GPU and there is none, or it was made from a configuration alone.
    """
    if is_file(checkpoint) and checkpoint == Path(plan.locations.checkpoint):
        raise UnsupportedError(
            f"the plan was made from a configuration ({checkpoint}) and figures of a machine, not "
            "from measurements: profile a checkpoint and plan from that, to run it"
        )
    if plan.device == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError(
            "the plan is for device 'cuda', and torch finds no CUDA GPU on this machine; run it "
            "where there is one, or profile and plan with --device cpu"
        )


def streams_over(plan: Plan) -> Link:
    """Where a plan has its copies come from, as its predicted timeline says."""
    return "h2d" if "h2d" in plan.predicted.timeline.channel else "disk"


def check_source(inputs: Inputs, source: WeightSource) -> None:
    """Hold what a plan was made from against the checkpoint and the store at hand.

    Raises
    ------
    StaleError
        Naming the first that differs.
    """
    if source.fingerprint != inputs.checkpoint_fingerprint:
        raise StaleError(
            "checkpoint",
            f"{source.checkpoint.folder}: is not the checkpoint that the plan was made for (its "
            "fingerprint differs); plan again for this one",
        )
    if source.store_fingerprint == inputs.store_fingerprint:
        return
    if inputs.store_fingerprint is None:
        raise StaleError(
            "store",
            "the plan was made for a checkpoint without a store: leave the store out, or profile "
            "with it and plan again",
        )
    if source.store is None:
        raise StaleError("store", "the plan was made with a store: give it with --store")
    raise StaleError(
        "store",
        f"{source.store}: this is not the store that the plan was made for (its fingerprint "
        "differs); plan again",
    )


def check_documents(plan: Plan, source: WeightSource, profile: Path | None) -> None:
    """Hold a plan against the checkpoint, the store and the profile at hand.

    The profile is checked where it is named or lies where the plan says.

    Raises
    ------
    StaleError
        Naming the first document that differs.
    UnsupportedError
        If the types do not fit.
    """
    check_source(plan.inputs, source)
    folder = source.checkpoint.folder
    if plan.dtype != source.model.dtype:
        raise UnsupportedError(
            f"the plan computes in {plan.dtype}, but {folder} is stored in {source.model.dtype}; "
            "weights are not converted"
        )
    if not source.both and any(layer.raw for layer in plan.policy.layers):
        raise UnsupportedError(
            "the plan has experts read as they are, beside compressed ones, and "
            f"{source.store or folder} does not have both: pack it with --compress both, profile "
            "and plan again"
        )
    threads, cores = plan.policy.threads, usable_cores()
    if threads is not None and threads.count > cores:
        _log.warning(
            "moeplan: the plan computes with %d threads, and this process may use %d of the "
            "machine's cores, so it will be slower than predicted: profile and plan here anew",
            threads.count,
            cores,
        )
    if source.model.dtype not in DTYPES:
        raise UnsupportedError(f"{folder}: {source.model.dtype} weights cannot be run yet")
    _check_profile(plan, profile)


def _check_profile(plan: Plan, profile: Path | None) -> None:
    hint = Path(plan.locations.profile)
    if profile is None and not lies_at(hint):
        _log.warning(
            "moeplan: the plan's profile cannot be read at %s, so the plan was not compared with "
            "it (--profile DIR names another place)",
            hint,
        )
        return
    folder = profile or hint
    index = load_profile(folder).index
    for name, have, want in (
        ("hardware", index.hardware_hash, plan.inputs.hardware),
        ("model", index.model_hash, plan.inputs.model),
        ("costs", index.costs_hash, plan.inputs.costs),
        ("routing", index.routing_hash, plan.inputs.routing),
    ):
        if have != want:
            raise StaleError(
                name,
                f"{folder}: its {name} document is not the one that the plan was made from; "
                "plan again from this profile",
            )


def lies_at(hint: Path) -> bool:
    """Whether a profile lies where a plan says; what cannot be looked at does not."""
    try:
        return exists(hint / "profile.json")
    except InputError:
        return False


def check_account(plan: Plan, model: ModelSpec) -> None:
    """Compute a plan's memory again: what it says of itself is not believed.

    Raises
    ------
    UnsupportedError, OptionError
        If the model cannot have the workload's attention window.
    BudgetError
        If the policy does not fit the budget; names the smallest that works.
    DocumentError
        If the plan's account says something else; names the first purpose that differs.
    """
    check_span(model, plan.workload)
    if plan.policy.kv is not None and (why := kv_stays(model, plan.device)):
        raise UnsupportedError(f"{model.name}: the plan has keys and values below: {why}")
    stated = plan.memory["device"]
    budget = stated.capacity_bytes
    width = DTYPES[model.dtype].itemsize
    account = account_device(model, plan.policy, plan.workload, width, budget)
    if account.peak_bytes > budget:
        least = smallest_budget(model, plan.workload, width)
        if kv_stays(model, plan.device) is None:
            least = min(least, smallest_budget(model, plan.workload, width, "below"))
        raise BudgetError(
            f"the plan needs {account.peak_bytes} bytes and its budget is {budget}; plan again "
            f"with a budget of at least {least} bytes, the smallest that works for this workload",
            least,
        )
    for purpose in sorted(account.by_purpose.keys() | stated.by_purpose.keys()):
        ours, theirs = account.by_purpose.get(purpose), stated.by_purpose.get(purpose)
        if ours != theirs:
            raise DocumentError(
                f"plan: memory.device: {purpose} takes {ours} bytes with this checkpoint, the "
                f"plan says {theirs}: plan again"
            )


def check_sampling(sampling: Sampling, plan: Plan, model: ModelSpec) -> None:
    """Refuse to draw tokens where the plan's memory has no room for whole rows of logits.

    They lie where a pass had its hidden states, so longer prompts make room.

    Raises
    ------
    OptionError
        If there is no room, or top-k keeps every token.
    """
    if sampling.top_k is not None and sampling.top_k >= model.vocab_size:
        raise OptionError(
            f"top-k {sampling.top_k} has no effect: the vocabulary has "
            f"{counted(model.vocab_size, 'token')}"
        )
    if _room_to_sample(plan, model, plan.workload):
        return
    most = model.max_context - plan.workload.new_tokens
    longer = range(plan.workload.prompt_tokens + 1, most + 1)

    def suffices(tokens: int) -> bool:
        return _room_to_sample(plan, model, replace(plan.workload, prompt_tokens=tokens))

    at = bisect_left(longer, True, key=suffices)
    remedy = (
        f"plan again with --prompt-tokens {longer[at]}"
        if at < len(longer)
        else "leave the temperature out"
    )
    raise OptionError(
        f"drawing from {counted(model.vocab_size, 'token')} for each of "
        f"{counted(group_sequences(plan.policy, plan.workload), 'sequence')} needs more memory "
        f"than this plan has beside its weights: {remedy}"
    )


def _room_to_sample(plan: Plan, model: ModelSpec, workload: Workload) -> bool:
    policy, width, vocabulary = plan.policy, DTYPES[model.dtype].itemsize, model.vocab_size
    sequences = group_sequences(policy, workload)
    values = sequences * workload.prompt_tokens * model.hidden_size
    # as ``GroupState.logits`` lays them: residual and expert input, and sums in float32
    rows = 2 * (values // vocabulary) + values * 4 // width // vocabulary
    logits = account_device(model, policy, workload, width, 0).by_purpose["logits"]
    scratch = operation_bytes(model, policy, workload, width) + logits
    return rows >= sequences and scratch >= SCRATCH_BYTES * vocabulary
