"""The documents: versioned JSON at the edge, frozen dataclasses inside.

``Hardware`` and ``CostProfile`` say how fast a machine is, ``ModelSpec`` how large a model is,
``RoutingTrace`` and ``RoutingStats`` which experts tokens choose, ``Workload`` what is asked,
``Plan`` what is decided, ``Trace`` what happened. ``base`` has hashing, ``writing``
atomic writing.
"""

from planner.documents.base import (
    Document,
    Figure,
    canonical_json,
    document_hash,
    dump_document,
    load_document,
    load_with_seal,
    parse_document,
    printable,
    to_json,
    write_document,
)
from planner.documents.costs import (
    CostProfile,
    Curve,
    Hardware,
    HostExperts,
    KvWrites,
    RawCopies,
    Surface,
)
from planner.documents.links import Burst, Channel, Tier
from planner.documents.machine import Machine
from planner.documents.model import (
    OWN,
    ExpertForm,
    FormName,
    LayerSpec,
    ModelSpec,
    QuantizedExperts,
    StoredShares,
)
from planner.documents.offload import DevicePolicy, DevicePrediction, KeptExperts, Offload
from planner.documents.placement import (
    BalanceFigures,
    ExpertPlacement,
    LayerPlacement,
    PlacementCandidate,
)
from planner.documents.plan import (
    MOST_REQUESTS,
    Asked,
    ExpertError,
    HostCompute,
    Inputs,
    LayerPolicy,
    Locations,
    MemoryAccount,
    Plan,
    Policy,
    ProfileIndex,
    Workload,
)
from planner.documents.predicted import Predicted, PredictedTotals, Range, Slowdown
from planner.documents.routing import RoutingStats, RoutingTrace
from planner.documents.slowdowns import FormSlowdown
from planner.documents.threads import ThreadRatio, ThreadTimes, ThreadUse
from planner.documents.timeline import Event, ServedAs, Timeline, Trace, TraceTotals
from planner.documents.writing import write_atomic, writing

DOCUMENTS: dict[str, type[Document]] = {
    cls.kind: cls
    for cls in (
        Hardware,
        ModelSpec,
        CostProfile,
        RoutingTrace,
        RoutingStats,
        Workload,
        ProfileIndex,
        Plan,
        Trace,
        ExpertPlacement,
        Machine,
    )
}

__all__ = [
    "DOCUMENTS",
    "MOST_REQUESTS",
    "OWN",
    "Asked",
    "BalanceFigures",
    "Burst",
    "Channel",
    "CostProfile",
    "Curve",
    "DevicePolicy",
    "DevicePrediction",
    "Document",
    "Event",
    "ExpertError",
    "ExpertForm",
    "ExpertPlacement",
    "Figure",
    "FormName",
    "FormSlowdown",
    "Hardware",
    "HostCompute",
    "HostExperts",
    "Inputs",
    "KeptExperts",
    "KvWrites",
    "LayerPlacement",
    "LayerPolicy",
    "LayerSpec",
    "Locations",
    "Machine",
    "MemoryAccount",
    "ModelSpec",
    "Offload",
    "PlacementCandidate",
    "Plan",
    "Policy",
    "Predicted",
    "PredictedTotals",
    "ProfileIndex",
    "QuantizedExperts",
    "Range",
    "RawCopies",
    "RoutingStats",
    "RoutingTrace",
    "ServedAs",
    "Slowdown",
    "StoredShares",
    "Surface",
    "ThreadRatio",
    "ThreadTimes",
    "ThreadUse",
    "Tier",
    "Timeline",
    "Trace",
    "TraceTotals",
    "Workload",
    "canonical_json",
    "document_hash",
    "dump_document",
    "load_document",
    "load_with_seal",
    "parse_document",
    "printable",
    "to_json",
    "write_atomic",
    "write_document",
    "writing",
]
