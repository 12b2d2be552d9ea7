"""What is asked of the service: bodies of requests, strict to the last key.

A job keeps the validated request as its inputs, defaults filled in, so that a request that names a
default is the same job as one that leaves it out.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from moeplan.commands.common import (
    DEFAULT_TIME_LIMIT_SECONDS,
    DEFAULT_TOLERANCE,
    no_predictors_words,
    searches,
)
from moeplan.service.problems import Refusal
from planner.documents import MOST_REQUESTS, printable
from planner.forms import allowed_ppb
from planner.kv import KV_PLACES
from planner.objectives import OBJECTIVES
from planner.placement import METHODS
from solvers.errors import OptionError
from solvers.registry import names

__all__ = [
    "MOST_SECONDS",
    "CompareRequest",
    "ExplainRequest",
    "Hash",
    "PlacementRequest",
    "PlanRequest",
    "ProfileUpload",
    "RoutingUpload",
    "Shown",
    "Strict",
    "WorkloadBody",
]

MOST_SECONDS = 600.0
"""No search of the service is longer."""

_MOST = 1 << 62

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", examples=["0123456789abcdef" * 4])]
Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS)]
Seed = Annotated[int, Field(ge=0, lt=1 << 31)]
Document = Annotated[dict[str, Any], Field(description="A document; 'moeplan schema' tells all.")]
Base64 = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9+/]*={0,2}$",
        json_schema_extra={"contentEncoding": "base64"},
        description="A routing.npz, in base64.",
    ),
]


def _one_of(values: tuple[str, ...]) -> Any:
    """A text out of a list that the program knows, told to readers of the API."""
    return Field(
        pattern=f"^({'|'.join(values)})$", json_schema_extra={"enum": list(values)}, max_length=40
    )


def _printable(text: str | None) -> str | None:
    if text is not None and not printable(text):
        raise ValueError("holds control characters")
    return text


Shown = AfterValidator(_printable)
"""A text that people are shown as it is."""

Solver = Annotated[str, _one_of(names())]
ObjectiveName = Annotated[str, _one_of(OBJECTIVES)]
KvPlace = Annotated[str, _one_of(tuple(place for place in KV_PLACES if place != "auto"))]
Method = Annotated[str, _one_of(METHODS)]


class Strict(BaseModel):
    """Nothing is converted, nothing unknown let pass."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class WorkloadBody(Strict):
    """How many sequences, how long."""

    requests: int = Field(ge=1, le=MOST_REQUESTS, examples=[64])
    prompt_tokens: int = Field(ge=1, le=1 << 27, examples=[64])
    new_tokens: int = Field(ge=1, le=1 << 27, examples=[16])
    attention_window: int | None = Field(
        default=None, ge=1, le=1 << 27, description="Last tokens that one attends to (all)."
    )
    attention_sinks: int | None = Field(
        default=None, ge=0, le=1 << 20, description="First tokens, beside a window."
    )

    @model_validator(mode="after")
    def _both(self) -> WorkloadBody:
        if (self.attention_window is None) != (self.attention_sinks is None):
            raise ValueError("attention_window and attention_sinks go together")
        return self

    @model_serializer(mode="wrap")
    def _without_none(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # as in the document of a plan
        return {key: value for key, value in dump(self).items() if value is not None}


class ProfileUpload(Strict):
    """A whole profile folder."""

    profile: Document
    hardware: Document
    model: Document
    costs: Document
    routing: Document
    arrays_base64: Base64


class RoutingUpload(Strict):
    """A routing document and its arrays."""

    routing: Document
    arrays_base64: Base64


class _Search(Strict):
    """What all searches for plans share."""

    profile: Hash
    memory_bytes: int = Field(ge=1, le=_MOST, examples=[600 << 20])
    workload: WorkloadBody
    then: ObjectiveName | None = Field(
        default=None, description="A second objective, among plans nearly the best by the first."
    )
    tolerance: float | None = Field(
        default=None, ge=0, lt=1, description="What of the first 'then' may give up (0.01)."
    )
    time_limit_seconds: Seconds | None = Field(
        default=None, description="Of solvers that search (10).", examples=[10.0]
    )
    seed: Seed = 0
    kv: KvPlace | None = Field(
        default=None, description="Where keys and values lie (what is better)."
    )
    predictors: bool | None = Field(
        default=None,
        description="Have layers follow what predictor finds more than the list, or none (look "
        "ahead where that is clearly faster).",
    )

    allow_error: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="Of a store with several forms: how far off experts' weights may be on "
        "average (0.01: 1%).",
    )

    def _inputs(self, solvers: tuple[str, ...], objectives: tuple[str, ...]) -> dict[str, Any]:
        searching = any(map(searches, solvers))
        if self.then is None and self.tolerance is not None:
            raise no_effect("body.tolerance", "tolerance has no effect without then")
        if self.then in objectives:
            raise no_effect("body.then", f"then {self.then!r} is the first objective already")
        for name in ("then", "time_limit_seconds"):
            if getattr(self, name) is not None and not searching:
                said = f"{name} has no effect: {', '.join(solvers)} follows a rule"
                raise no_effect(f"body.{name}", said)
        if self.predictors is False and not searching:
            raise no_effect("body.predictors", no_predictors_words(solvers, "predictors false"))
        if self.allow_error is not None:
            try:
                allowed_ppb(self.allow_error)
            except OptionError as error:
                raise no_effect("body.allow_error", str(error)) from error
        asked = self.model_dump()
        for name in ("kv", "predictors", "allow_error", "profile_folder"):
            if asked.get(name) is None:
                asked.pop(
                    name, None
                )  # so that what was asked for before these could be is the same job
        return {
            **asked,
            "tolerance": DEFAULT_TOLERANCE if self.tolerance is None else self.tolerance,
            "time_limit_seconds": self.time_limit_seconds or DEFAULT_TIME_LIMIT_SECONDS,
        }


class PlanRequest(_Search):
    """A plan that is wanted."""

    solver: Solver = "cpsat"
    objective: ObjectiveName = "throughput"
    profile_folder: Annotated[str, Field(min_length=1, max_length=4096), Shown] | None = Field(
        default=None,
        description="Where the profile lies for whoever asks, which the plan says then.",
    )

    def inputs(self) -> dict[str, Any]:
        """Of the job.

        Raises
        ------
        Refusal
            If an option can have no effect.
        """
        return self._inputs((self.solver,), (self.objective,))


class CompareRequest(_Search):
    """Solvers under objectives, each with each."""

    solvers: list[Solver] = Field(default=list(names()), min_length=1, max_length=20)
    objectives: list[ObjectiveName] = Field(
        default=[OBJECTIVES[0]], min_length=1, max_length=len(OBJECTIVES)
    )

    def inputs(self) -> dict[str, Any]:
        """As of a plan."""
        for name in ("solvers", "objectives"):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise no_effect(f"body.{name}", f"{name} names one of them twice")
        return self._inputs(tuple(self.solvers), tuple(self.objectives))


class ExplainRequest(Strict):
    """How long each of an explanation's new plans may take."""

    time_limit_seconds: float = Field(default=5.0, gt=0, le=60)


class PlacementRequest(Strict):
    """Experts on many devices."""

    routing: Hash
    devices: int = Field(ge=1, le=1024, examples=[4])
    nodes: int = Field(default=1, ge=1, le=1024)
    method: Method = "cpsat"
    replicas: int = Field(default=0, ge=0, le=4096)
    memory_bytes: int | None = Field(
        default=None, ge=1, le=_MOST, description="For experts, on each device; needs 'model'."
    )
    model: Hash | None = Field(default=None, description="How large its experts are.")
    intra_bandwidth: float | None = Field(
        default=None, gt=0, le=1e18, description="Bytes/s between devices of a node."
    )
    inter_bandwidth: float | None = Field(
        default=None, gt=0, le=1e18, description="Bytes/s between nodes."
    )
    batch: int = Field(default=1, ge=1, le=1 << 20)
    scenarios: int = Field(default=512, ge=1, le=1 << 16)
    time_limit_seconds: Seconds | None = Field(
        default=None, description="Of methods that search (30)."
    )
    seed: Seed = 0

    def inputs(self) -> dict[str, Any]:
        """As of a plan."""
        for one, other in (("memory_bytes", "model"), ("intra_bandwidth", "inter_bandwidth")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                missing = one if getattr(self, one) is None else other
                raise no_effect(f"body.{missing}", f"{one} and {other} go together")
        if self.nodes == 1 and self.inter_bandwidth is not None:
            said = "inter_bandwidth has no effect with one node"
            raise no_effect("body.inter_bandwidth", said)
        if self.time_limit_seconds is not None and self.method not in ("cpsat", "milp"):
            said = f"time_limit_seconds has no effect: {self.method} does not search"
            raise no_effect("body.time_limit_seconds", said)
        return {**self.model_dump(), "time_limit_seconds": self.time_limit_seconds or 30.0}


def no_effect(field: str, detail: str) -> Refusal:
    """A value that is valid alone but not with the others."""
    return Refusal(422, "option", "Not a valid value", detail, field)
