"""The workload and plan documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from planner.documents.base import (
    STRICT,
    Added,
    Bytes,
    Document,
    Fraction,
    Hash,
    Keyed,
    Tokens,
    Units,
)
from planner.documents.inputs import Inputs
from planner.documents.model import OWN, FormName, Parts
from planner.documents.predicted import Predicted
from planner.documents.threads import ThreadUse
from solvers.outcome import BoundClass, Eviction

__all__ = [
    "MOST_REQUESTS",
    "Asked",
    "ExpertError",
    "HostCompute",
    "Inputs",
    "LayerPolicy",
    "Locations",
    "MemoryAccount",
    "Plan",
    "Policy",
    "ProfileIndex",
    "Workload",
]

MOST_REQUESTS = 1_000_000
"""More are not planned for at once."""

Requests = Annotated[int, Field(ge=1, le=MOST_REQUESTS)]
Expert = Annotated[int, Field(ge=0, lt=1 << 16)]
Batch = Annotated[int, Field(ge=0, lt=MOST_REQUESTS)]


@dataclass(frozen=True)
class Workload(Document):
    """How many sequences, how long: what a plan is made for.

    ``prompt_tokens`` is the longest prompt; ``new_tokens`` the tokens generated for each. With
    ``attention_window`` w and ``attention_sinks`` s a token attends to the first s tokens of its
    sequence and to the last w, itself among them (arXiv 2309.17453, section 3.2); None: to all.
    """

    kind: ClassVar[str] = "workload"

    requests: Requests
    prompt_tokens: Tokens
    new_tokens: Tokens
    attention_window: Added[Tokens] = None
    attention_sinks: Added[Units] = None

    def __post_init__(self) -> None:
        if (self.attention_window is None) != (self.attention_sinks is None):
            raise ValueError("attention_window and attention_sinks go together")


@dataclass(frozen=True, slots=True)
class LayerPolicy:
    """What the plan fixes for one layer before its routing is known.

    ``resident`` (ascending) stay on the device; ``prefetch`` are copied before the router speaks,
    in this order. An expert is in at most one of them; the rest are copied on demand.

    ``predictor`` says what takes the place of the prefetches that have not begun when the router of
    the MoE layer before has spoken: ``plan``, the list itself; else as many experts as the list has
    left, as named by that predictor (``planner.predictors``).

    ``waits``: the layer looks ahead, and nothing of its list is copied before a router has named
    experts; the list says how many, and by which eviction ``plan`` goes.

    ``raw`` (ascending, none of them resident) are read as they are, of a store that has experts
    compressed, too; all others are read compressed.

    ``forms`` says of each expert, resident or not, in which form it is read and computed, of a
    store that has several; empty: all are as in the checkpoint.

    ``kv_resident`` (ascending) are the batches whose keys and values of this layer stay on the
    device, where each batch's are copied by themselves (``Policy.kv``).
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    dense_resident: bool
    resident: tuple[Expert, ...]
    prefetch: tuple[Expert, ...]
    predictor: Literal["plan", "coactivation", "lookahead", "popularity", "clairvoyant"] = "plan"
    raw: Annotated[tuple[Expert, ...], Field(exclude_if=lambda experts: not experts)] = ()
    forms: Annotated[tuple[FormName, ...], Field(exclude_if=lambda forms: not forms)] = ()
    waits: Annotated[bool, Field(exclude_if=lambda waits: not waits)] = False
    kv_resident: Annotated[tuple[Batch, ...], Field(exclude_if=lambda batches: not batches)] = ()

    def form(self, expert: int) -> FormName:
        """The form that an expert is read and computed in."""
        return self.forms[expert] if self.forms else OWN


@dataclass(frozen=True, slots=True)
class HostCompute:
    """Which experts are computed where they lie, in host memory, instead of being copied.

    Of the experts of a layer that its router demands and whose copies have not begun, ``percent``
    in a hundred (rounded down): those of the fewest tokens, and none of more than ``rows`` tokens.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    rows: Tokens
    percent: Annotated[int, Field(ge=1, le=100)]


@dataclass(frozen=True, slots=True)
class Policy:
    """What the executor carries out.

    Attributes
    ----------
    n_batches, batch_size
        n batches of b sequences form a group.
    layers
        One entry a decoder layer.
    head_tile_rows, head_tiles, resident_head_tiles
        The head is computed in tiles of vocabulary rows; the first ``resident_head_tiles`` stay,
        the others stream through expert slots, in order, each pass.
    slots, dense_slots
        Streaming slots for experts and head tiles (each holds the largest of them), and for dense
        parts (each holds the largest streamed dense part). 0 where nothing of the kind streams.
    reserve
        Expert slots that the prefetch chain leaves to on-demand copies.
    eviction
        ``none``: a slot is free once its expert was used (or found unused). Otherwise contents stay
        valid until the slot is taken; what goes first is in ``docs/runtime.md``. ``belady`` needs
        a recording of the same run.
    chunk_bytes
        Copies are made in pieces of this size; between pieces an on-demand copy may overtake.
    kv
        Where keys and values lie. None: on the device. ``below``: those of a layer whose dense part
        is resident on the device, those of the others in the tier below: they are copied with the
        dense part, into its slot, and what attention adds is written back. ``batches``: those of
        each batch of a layer by themselves in the tier below, but for each layer's ``kv_resident``;
        all dense parts are resident.
    kv_slots
        With ``batches`` the slots for keys and values, each of which holds those of one batch in
        one layer; otherwise None.
    host
        Experts computed in host memory while the device computes others; None: none.
    hold
        While a layer whose experts are not all resident computes up to its router, no chunk begins
        of what layers more than so many on need; None: that makes no difference.
    threads
        How many threads of a CPU compute what, as it was measured; None: as many as there are
        cores, for everything.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    n_batches: Requests
    batch_size: Requests
    layers: Annotated[tuple[LayerPolicy, ...], Field(min_length=1)]
    head_tile_rows: Annotated[int, Field(ge=1, le=1 << 24)]
    head_tiles: Annotated[int, Field(ge=1, le=1 << 20)]
    resident_head_tiles: Units
    slots: Units
    dense_slots: Units
    reserve: Units
    eviction: Eviction
    chunk_bytes: Annotated[int, Field(ge=4096, le=64 << 20)]
    kv: Added[Literal["below", "batches"]] = None
    kv_slots: Added[Units] = None
    host: Added[HostCompute] = None
    hold: Added[Units] = None
    threads: Added[ThreadUse] = None

    @property
    def stages_each(self) -> int:
        """Stages that a layer is: one, or one a batch and one for router and experts."""
        return self.n_batches + 1 if self.kv == "batches" else 1

    @property
    def starts_stream(self) -> bool:
        """Whether any stage waits for what is copied before it begins."""
        if self.kv == "batches":
            return any(len(layer.kv_resident) < self.n_batches for layer in self.layers)
        return not all(layer.dense_resident for layer in self.layers)

    @property
    def start_slots(self) -> int:
        """Slots for what a stage waits for before it begins."""
        return (self.kv_slots or 0) if self.kv == "batches" else self.dense_slots

    @property
    def expert_forms(self) -> tuple[tuple[FormName, ...], ...]:
        """By layer: each expert's form, or nothing where all are as in the checkpoint; empty: so
        are all layers'."""
        forms = tuple(layer.forms for layer in self.layers)
        return forms if any(forms) else ()


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """Peak bytes of one tier, by purpose; ``peak_bytes`` is their sum."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    capacity_bytes: Bytes
    by_purpose: Keyed[str, Bytes]

    @property
    def peak_bytes(self) -> int:
        """Sum of all purposes."""
        return sum(self.by_purpose.values())


@dataclass(frozen=True, slots=True)
class Asked:
    """How a plan was asked for, beside its workload, budget, objective and seed: whoever plans it
    anew (``planner.explain``) does so with the same.

    Attributes
    ----------
    solver
        The back end; the plan may be a strategy's that was better.
    kv
        Where keys and values were to lie; ``auto``: where it is better.
    predictors
        Whether layers are to follow predictors; None: look ahead where that is clearly faster.
    then, tolerance
        The second objective, and the share of the first one that it may give up.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    solver: str
    kv: Literal["auto", "device", "below", "batches"] = "auto"
    predictors: Added[bool] = None
    then: Added[str] = None
    tolerance: Added[Fraction] = None

    def __post_init__(self) -> None:
        if (self.then is None) != (self.tolerance is None):
            raise ValueError("then and tolerance go together")


@dataclass(frozen=True, slots=True)
class ExpertError:
    """How far the experts are off that a plan reads quantized, of a store with several forms.

    Attributes
    ----------
    kind
        ``weights``: of one expert, the root of its weights' squared errors' sum over that of the
        weights.
    allowed_ppb
        The most that the mean may be, as asked for; in thousand-millionths.
    mean_ppb
        The mean over all experts, each as often as the recorded tokens chose it and once more,
        rounded up (``planner.forms``).
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    kind: Literal["weights"]
    allowed_ppb: Annotated[Parts, Field(ge=1)]
    mean_ppb: Parts


@dataclass(frozen=True, slots=True)
class Locations:
    """Where the inputs lay when the plan was made: hints, which options override."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    profile: str
    checkpoint: str
    store: str | None


@dataclass(frozen=True)
class ProfileIndex(Document):
    """What a profile folder holds: ``hardware.json``, ``model.json``, ``costs.json`` and
    ``routing.json`` (with ``routing.npz``), and what they were made from.

    ``memory_bytes`` is the device budget that the profile was measured under; ``notes`` what
    a reader of its plans must know of where it comes from (of one that was not measured).
    """

    kind: ClassVar[str] = "profile"

    checkpoint: str
    store: str | None
    checkpoint_fingerprint: Hash
    store_fingerprint: Hash | None
    memory_bytes: Bytes
    hardware_hash: Hash
    model_hash: Hash
    costs_hash: Hash
    routing_hash: Hash
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan(Document):
    """A plan: policy, memory, prediction and proof.

    Attributes
    ----------
    solver, solver_version
        Back end that made it.
    stop
        Why the solver stopped: ``optimal``, ``time_limit``, ``rule`` (a strategy, no search),
        ``interrupted``.
    objective_name, objective, bound, gap
        ``objective`` and ``bound`` in the objective's unit (for throughput: ns a token, which is
        minimised); ``gap`` = (objective - bound) / objective. None where no bound was proven.
    bound_class
        Which policies the bound speaks of: ``plan``, ``clairvoyant``, ``cache`` or ``physical``.
    chosen_over
        Baselines that were compared, with what ``promised`` is for them; the plan is the best.
    notes
        Sentences for the reader: why this n, what binds, what was cut to fit.
    asked
        None: of a plan that was made by hand, or by a moeplan that did not say it yet.
    expert_error
        None where every expert is as in the checkpoint, or as the store has all of them.
    """

    kind: ClassVar[str] = "plan"
    sealed: ClassVar[bool] = True

    solver: str
    stop: Literal["optimal", "time_limit", "rule", "interrupted"]
    objective_name: str
    objective: float
    bound: float | None
    bound_class: BoundClass | None
    gap: Fraction | None
    inputs: Inputs
    locations: Locations
    workload: Workload
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16", "float16"]
    policy: Policy
    memory: Keyed[Literal["device", "host"], MemoryAccount]
    predicted: Predicted
    chosen_over: Keyed[str, float]
    notes: tuple[str, ...]
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    asked: Added[Asked] = None
    expert_error: Added[ExpertError] = None

    def __post_init__(self) -> None:
        if "device" not in self.memory:
            raise ValueError("memory: the account of the device is missing")

    @property
    def promised(self) -> float:
        """The objective as predicted, with the credit of a link that has one: what plans are
        compared by."""
        counted = self.predicted.objective
        return self.objective if counted is None else counted
