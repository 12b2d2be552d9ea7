"""Runs a placement: holds it against the checkpoint, starts its ranks, gives them prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from executor.caps import check_cap
from executor.closing import Closing
from executor.parallel.buffer import Eviction
from executor.parallel.follower import Follower
from executor.parallel.group import DeviceName, RankGroup
from executor.parallel.leader import Leader
from executor.parallel.machines import Machines
from executor.parallel.offload import check_offload_plan
from executor.parallel.rank import RankOptions, rank_account
from executor.parallel.rehearsal import SHORT_PASSES, longest, rehearse
from executor.parallel.report import ParallelRun, RankReport, Rebalance
from executor.prompts import check_tokens
from executor.source import open_weights
from executor.tokenizer import end_tokens
from planner.balance_simulator import Links, check_fits, copies_of
from planner.documents import Curve, ExpertPlacement, document_hash
from planner.memory import held_expert_bytes
from solvers.counting import counted
from solvers.errors import BudgetError, OptionError, UnsupportedError

__all__ = ["ParallelEngine"]

_MOST_RANKS = 64


class ParallelEngine(Closing):
    """A placement, checked against a checkpoint.

    Parameters
    ----------
    checkpoint, store
        Where weights are read from; each rank reads its own experts, and all dense parts.
    placement
        Which device holds which experts.
    memory_bytes
        For experts, on each device; None: as much as its experts take, or the placement's offload
        plan says.
    eviction
        What leaves a device's buffer first; None: ``lifo``, or what that plan says.
    device
        What each device of the placement is: a part of the CPU, or a CUDA GPU.
    machines
        This machine's place among several; None: it is the only one.
    group
        Ranks that run already, to be used and left; else they are started and ended here.

    Raises
    ------
    DocumentError
        If the placement is not for this model, or its offload plan not for the placement.
    StaleError
        If its offload plan is for another checkpoint or store.
    BudgetError
        If the memory does not hold an expert.
    OptionError
        If memory or eviction are given beside an offload plan.
    """

    def __init__(
        self,
        checkpoint: Path | str,
        placement: ExpertPlacement,
        *,
        store: Path | str | None = None,
        memory_bytes: int | None = None,
        eviction: Eviction | None = None,
        device: DeviceName = "cpu",
        machines: Machines | None = None,
        group: RankGroup | None = None,
    ) -> None:
        with open_weights(checkpoint, store) as source:
            self.model = source.model
            self._end_tokens = end_tokens(source.checkpoint)
            self._store_fingerprint = source.store_fingerprint
            check_fits(placement, self.model)
            if placement.offload is not None:
                check_offload_plan(placement, source)
        if placement.offload is not None and (memory_bytes, eviction) != (None, None):
            raise OptionError(
                "the placement's offload plan says what each device's memory holds: leave memory "
                "and eviction out, or run a placement without a plan"
            )
        if self.model.encoder:
            raise UnsupportedError(
                f"{self.model.name}: an encoder-decoder cannot run on several devices yet"
            )
        if device == "cuda" and placement.offload is not None:
            raise UnsupportedError(
                "the placement's offload plan is for CPUs: it is not run on GPUs yet; take a "
                "placement without one"
            )
        self._device: DeviceName = device
        self._machines = machines
        self._ranks = [range(placement.devices)]
        if machines is not None:
            self._ranks = machines.ranks(placement.devices, placement.nodes)
        self._here = self._ranks[0 if machines is None else machines.number]
        if len(self._here) > _MOST_RANKS:
            raise UnsupportedError(
                f"the placement has {counted(len(self._here), 'device')} for this machine; at most "
                f"{_MOST_RANKS} processes are started on one"
            )
        self.placement, self._eviction = placement, eviction or "lifo"
        self._checkpoint = Path(checkpoint).absolute()
        self._store = None if store is None else Path(store).absolute()
        self.slots = self._slots(memory_bytes)
        self._own_group = group is None
        self._group: RankGroup | Leader | None = group

    def _slots(self, memory_bytes: int | None) -> list[int]:
        own: list[int] = (copies_of(self.placement) > 0).sum(axis=(0, 1)).tolist()
        if memory_bytes is not None:
            size = max(map(held_expert_bytes, self.model.layers))
            if memory_bytes < size:
                raise BudgetError(
                    f"{memory_bytes:,} bytes for experts on each device do not hold one expert: "
                    f"the smallest memory that works is {size:,} bytes",
                    size,
                )
            own = [min(count, memory_bytes // size) for count in own]
        return [max(count, 1) for count in own]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        batch_size: int | None = None,
        record: bool = False,
        rebalance: Rebalance | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ParallelRun:
        """Greedy continuation of each prompt; prompt i runs on device i mod devices.

        Parameters
        ----------
        prompts
            Token ids.
        max_new_tokens
            New tokens for each.
        batch_size
            Sequences that one device runs at a time; None: all of its own, or as many as an offload
            plan is for.
        record
            Keep counts and times of each layer.
        rebalance
            Swap experts between passes where that pays; None: they stay.
        progress
            Called with passes done and at most to come.

        Raises
        ------
        OptionError
            If a prompt is empty, too long or not of this vocabulary.
        BudgetError
            If the machine or a control group has not the memory that all ranks need together.
        RunError
            If a rank dies or does not answer; the others are then ended.
        """
        self._check(prompts, max_new_tokens)
        devices = self.placement.devices
        shares = [[list(one) for one in prompts[rank::devices]] for rank in range(devices)]
        most = max(len(shares[0]), 1)
        if batch_size is not None and batch_size > most:
            raise OptionError(
                f"batches of {counted(batch_size, 'sequence')} have no effect: a device gets at "
                f"most {most}"
            )
        offload = self.placement.offload
        if batch_size is None:
            batch_size = most if offload is None else min(offload.batch_size, most)
        if offload is not None and rebalance is not None:
            raise OptionError(
                "the placement's offload plan is for experts that stay on their devices: leave "
                "rebalancing out, or run a placement without a plan"
            )
        passes = -(-most // batch_size) * max_new_tokens
        if rebalance is not None and (devices == 1 or rebalance.every >= passes):
            raise OptionError(
                f"rebalancing after {counted(rebalance.every, 'pass')} has no effect: the run "
                f"takes at most {passes}, on {counted(devices, 'device')}"
            )
        group = self._load(
            self._options(),
            batch_size=batch_size,
            requests=most,
            prompt_tokens=max(map(len, prompts)),
            new_tokens=max_new_tokens,
        )
        answers = group.ask(
            [
                {
                    "order": "generate",
                    "prompts": share,
                    "limit": max_new_tokens,
                    "end_tokens": sorted(self._end_tokens),
                    "record": record,
                    "rebalance": None if rebalance is None else asdict(rebalance),
                }
                for share in shares
            ],
            progress,
        )
        tokens: list[tuple[int, ...]] = [()] * len(prompts)
        for rank, answer in enumerate(answers):
            tokens[rank::devices] = [tuple(one) for one in answer["token_ids"]]
        return ParallelRun(
            tuple(tokens),
            tuple(RankReport(**answer["report"]) for answer in answers),
            tuple(tuple(answer["layers"]) for answer in answers) if record else (),
        )

    def measure(self) -> tuple[Curve, Links]:
        """What ``planner.balance_simulator`` needs to know of these processes: see ``rehearse``."""
        group = self._load(
            self._plain_options(),
            batch_size=1,
            requests=1,
            prompt_tokens=longest(self.model),
            new_tokens=SHORT_PASSES,
        )
        return rehearse(group, self.model, self.placement)

    def _plain_options(self) -> list[dict[str, Any]]:
        """How each rank holds its experts where nothing is copied ahead."""
        return [{"slots": slots, "eviction": self._eviction} for slots in self.slots]

    def _options(self) -> list[dict[str, Any]]:
        """How each rank holds its experts."""
        offload = self.placement.offload
        if offload is None:
            return self._plain_options()
        numbers = [one.layer for one in self.placement.layers]
        return [
            {
                "slots": policy.slots,
                "eviction": policy.eviction,
                "layers": [
                    (number, one.resident, one.prefetch)
                    for number, one in zip(numbers, policy.layers, strict=True)
                ],
                "reserve": policy.reserve,
                "chunk_bytes": offload.chunk_bytes,
            }
            for policy in offload.devices
        ]

    def _load(self, held: Sequence[dict[str, Any]], **sizes: Any) -> RankGroup | Leader:
        """Ranks that have loaded this placement, with buffers of these sizes."""
        ranks = [RankOptions(**one, **sizes) for one in held]
        self._check_memory(ranks[self._here.start : self._here.stop])
        if self._group is None:
            self._group = self._started()
        order = {
            "order": "load",
            **self._places(),
            "placement": [asdict(layer) for layer in self.placement.layers],
        }
        self._group.ask([{**order, "options": asdict(options)} for options in ranks])
        return self._group

    def _check_memory(self, ranks: Sequence[RankOptions]) -> None:
        """Each rank looks for itself, but those of a CPU share its memory."""
        if self._device == "cpu":
            check_cap(sum(rank_account(self.model, options).peak_bytes for options in ranks))

    def _started(self) -> RankGroup | Leader:
        if self._machines is None:
            return RankGroup(self.placement.devices, device=self._device)
        return Leader(self._machines, self._ranks, self._facts(self._machines), self._device)

    def _facts(self, machines: Machines) -> dict[str, Any]:
        """What is the same on all machines, or nothing is loaded."""
        return {
            "placement": document_hash(self.placement),
            "checkpoint": self.model.fingerprint,
            "store": self._store_fingerprint,
            "number of machines": machines.count,
            "kind of device": self._device,
            **{f"version of {name}": version(name) for name in ("moeplan", "torch")},
        }

    def follow(self) -> None:
        """Do this machine's part of what the first one asks for, until all is done.

        Raises
        ------
        MoeplanError
            What ended the work: the same on all machines.
        """
        machines = self._machines
        if machines is None or not machines.number:
            raise ValueError("only machines other than the first follow it")
        facts = self._facts(machines)
        with Follower(machines, self.placement.devices, self._here, facts, self._device) as group:
            group.serve(self._prepare)

    def _prepare(self, orders: list[dict[str, Any]]) -> None:
        """This machine's own paths, where ranks load."""
        loads = [order for order in orders if order["order"] == "load"]
        for order in loads:
            order.update(self._places())
        self._check_memory([RankOptions(**order["options"]) for order in loads])

    def _places(self) -> dict[str, Any]:
        return {
            "checkpoint": str(self._checkpoint),
            "store": self._store and str(self._store),
        }

    def _check(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        if not prompts:
            raise OptionError("there is no prompt")
        if max_new_tokens < 1:
            raise OptionError(
                f"{counted(max_new_tokens, 'new token')} are asked for; 1 is the least"
            )
        for number, prompt in enumerate(prompts, 1):
            check_tokens(number, prompt, self.model.vocab_size)
        longest = max(map(len, prompts)) + max_new_tokens
        if longest > self.model.max_context:
            raise OptionError(
                f"{counted(longest, 'token')}, of the longest prompt and {max_new_tokens} new "
                f"ones, exceed the model's context of {self.model.max_context}"
            )

    def close(self) -> None:
        """End the ranks that were started here."""
        if self._own_group and self._group is not None:
            self._group.close()
            self._group = None
