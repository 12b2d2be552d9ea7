"""A routing trace from statistics of routing, or from none.

Statistics say how often experts are chosen, not which token chose which. What they lack is drawn:

``trace``
    Nothing is: recorded tokens stay as they are.
``shares``
    A sequence is a prompt; each of its tokens draws its experts by the prompt's shares,
    independently of the token before and, given the prompt, of the other layers.
``heat``, ``counts``, ``joint``
    All tokens draw by the same counts, independently; sequences take turns among the domains. Real
    sequences stick to their experts more, so that caching and small groups look worse than they
    are, and large groups even.
``uniform``, ``zipf:A``
    As ``heat``, with all experts alike, or the r-th most popular as likely as 1 / r^A, each layer
    in another order.

A token draws ``top_k`` different experts, each with exactly the chance that the statistics give
(systematic sampling: Madow, Annals of Mathematical Statistics 20, 1949).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from planner.documents import ModelSpec, RoutingTrace, document_hash
from planner.documents.base import Source
from planner.files import exists
from planner.routing import TraceArrays, load_trace, trace_bytes, trace_document
from planner.routing_sources import RoutingSource, load_source
from solvers.counting import counted
from solvers.errors import DocumentError, OptionError, UnsupportedError
from solvers.told import Told, untold

__all__ = ["DrawnRouting", "draw_routing", "inclusion", "systematic"]

Floats = npt.NDArray[np.float64]

_SEQUENCES, _FEWEST = 128, 64
_DECODED = 16
_PROMPT = (16, 512)
_MOST_CHANCES = 1 << 25
"""Sequences x tokens x layers x experts that are drawn: seconds of work."""
_NUMBERS = npt.NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class DrawnRouting:
    """A trace with the words for how it came about."""

    document: RoutingTrace
    arrays: TraceArrays
    statement: str


def draw_routing(
    what: str,
    model: ModelSpec,
    *,
    prompt_tokens: int,
    seed: int,
    series: str | None = None,
    progress: Told = untold,
) -> DrawnRouting:
    """The routing of ``model`` by ``what``.

    Parameters
    ----------
    what
        ``uniform``, ``zipf:A``, or the path of a file that ``load_source`` reads.
    model
        Whose experts choose.
    prompt_tokens
        Length of the prompts that are planned for.
    series
        Which series of a ``counts`` file.
    progress
        Told of each sequence that is drawn.

    Raises
    ------
    DocumentError
        If the file is of other layers or experts than the model.
    OptionError
        If ``what`` is neither, or ``series`` has no effect.
    """
    layers = [layer for layer in model.layers if layer.experts]
    experts, top_k = layers[0].experts, layers[0].top_k
    if any((layer.experts, layer.top_k) != (experts, top_k) for layer in layers):
        raise UnsupportedError(f"{model.name}: its layers differ in experts; no routing for that")
    random = np.random.default_rng([seed, 3])
    if what == "uniform" or what.startswith("zipf:"):
        if series is not None:
            raise OptionError(f"--series has no effect on --routing {what}")
        chance = _by_rule(what, len(layers), experts, top_k, random)[None]
        said = f"tokens drawn independently, {_rule_words(what)}: no real routing is in it"
        return _drawn(model, chance, top_k, said, prompt_tokens, random, progress)
    path = Path(what)
    if not exists(path):
        raise OptionError(
            f"--routing {what}: no such file; give statistics, uniform, or zipf:A (zipf:1.0)"
        )
    source = load_source(path, series)
    if source.kind == "trace":
        return _recorded(path, model)
    chance, said = _chances(source, path, model, random)
    return _drawn(model, chance, top_k, said, prompt_tokens, random, progress)


def _by_rule(
    what: str, layers: int, experts: int, top_k: int, random: np.random.Generator
) -> Floats:
    if what == "uniform":
        return np.full((layers, experts), top_k / experts)
    try:
        power = float(what.removeprefix("zipf:"))
    except ValueError:
        power = math.nan
    if "_" in what or not 0 <= power <= 10:
        raise OptionError(f"--routing {what}: write it like zipf:1.0, with a number from 0 to 10")
    weight = np.arange(1, experts + 1, dtype=np.float64) ** -power
    orders = [random.permutation(experts) for _ in range(layers)]
    return np.stack([inclusion(weight[order], top_k) for order in orders])


def _rule_words(what: str) -> str:
    if what == "uniform":
        return "all experts alike"
    return f"the r-th most popular expert of a layer as likely as 1 / r^{what[5:]}"


def _recorded(path: Path, model: ModelSpec) -> DrawnRouting:
    trace, arrays = load_trace(path)
    moe = model.moe_layers
    spec = model.layers[moe[0]]
    if (trace.moe_layers, trace.experts, trace.top_k) != (moe, spec.experts, spec.top_k):
        raise DocumentError(
            f"{path}: of {counted(len(trace.moe_layers), 'layer')} with {trace.top_k} of "
            f"{counted(trace.experts, 'expert')}; {model.name} has {len(moe)} with {spec.top_k} of "
            f"{spec.experts}"
        )
    said = f"whole sequences as in {path.name}"
    if trace.model_hash != document_hash(model):
        said += (
            "; it is of a model of the same shape, and whether of this one cannot be told: for "
            "that, name the checkpoint's folder, not its config.json alone"
        )
    return _document(model, arrays, trace.source, said)


def _chances(
    source: RoutingSource, path: Path, model: ModelSpec, random: np.random.Generator
) -> tuple[Floats, str]:
    """[sequences or domains, moe_layers, experts] chances, and the words."""
    moe = model.moe_layers
    experts, top_k = model.layers[moe[0]].experts, model.layers[moe[0]].top_k
    if source.experts != experts:
        raise DocumentError(
            f"{path}: of {counted(source.experts, 'expert')}; {model.name} has {experts}"
        )
    if source.top_k not in (None, top_k):
        raise DocumentError(
            f"{path}: {counted(source.top_k, 'expert')} a token; {model.name} has {top_k}"
        )
    if source.layers[-1] > model.layers[-1].index or len(source.layers) > len(moe):
        raise DocumentError(
            f"{path}: of layers up to {source.layers[-1]}; {model.name} has {len(model.layers)}"
        )
    known = np.array(source.layers)
    if len(known) == len(moe):
        nearest = np.arange(len(moe))
    else:
        nearest = np.array([int(abs(known - index).argmin()) for index in moe])
    if source.kind == "shares":
        prompts = np.concatenate(list(source.sequences.values()))
        prompts = prompts[random.permutation(len(prompts))[:_SEQUENCES]].astype(np.float64)
        said = (
            f"prompts of {path.name} by their shares; of each, tokens drawn independently, and "
            "layers too: which token chose which expert is not in it"
        )
    else:
        prompts = np.stack(list(source.heat.values()))
        said = (
            f"tokens drawn independently by the counts of {path.name}: sequences that stick to "
            "their experts, and experts that are chosen together, are not in it"
        )
        if source.kind == "joint":
            said += ", nor which follow which from layer to layer"
        if len(prompts) > 1:
            said += f"; sequences take turns among {counted(len(prompts), 'domain')}"
    if len(set(nearest.tolist())) < len(moe):
        said += (
            f"; only {len(known)} of {counted(len(moe), 'layer')} known, the others take the "
            "nearest one's"
        )
    chance = np.stack([[inclusion(row, top_k) for row in one[nearest]] for one in prompts])
    return chance, said


def inclusion(weight: Floats, top_k: int) -> Floats:
    """Chances in proportion to ``weight`` that add up to ``top_k``, none above 1.

    Where proportion would take one above 1 it is certain, and the others share the rest.
    """
    chance = np.zeros(len(weight))
    free = np.ones(len(weight), dtype=bool)
    # where fewer than top_k have any weight, the others are as likely as each other
    weight = np.where((weight > 0).sum() < top_k, weight + 1e-12, weight).astype(np.float64)
    while True:
        left = top_k - (~free).sum()
        chance[free] = weight[free] * (left / weight[free].sum()) if left else 0.0
        over = free & (chance >= 1.0)
        if not over.any() or not left:
            return np.minimum(chance, 1.0)
        chance[over] = 1.0
        free &= ~over
        if not free.any():
            return chance


def systematic(chance: Floats, top_k: int, random: np.random.Generator) -> _NUMBERS:
    """One draw of ``top_k`` different experts for each row of ``chance``.

    Parameters
    ----------
    chance
        [rows, experts], each row adding up to ``top_k``, none above 1.

    Returns
    -------
    uint16 [rows, top_k]
        Each expert with its chance; the order of the experts is drawn anew for each row, so that
        no two are tied to each other.
    """
    rows, experts = chance.shape
    order = random.permuted(np.broadcast_to(np.arange(experts), (rows, experts)), axis=1)
    ends = np.cumsum(np.take_along_axis(chance, order, axis=1), axis=1)
    ends *= top_k / ends[:, -1:]
    # rounding must not lose the last point
    ends[:, -1] = top_k + 1.0
    points = random.random((rows, 1)) + np.arange(top_k)
    places = (ends[:, None, :] <= points[:, :, None]).sum(axis=2)
    picked: _NUMBERS = np.take_along_axis(order, places, axis=1).astype(np.uint16)
    return picked


def _drawn(
    model: ModelSpec,
    chance: Floats,
    top_k: int,
    said: str,
    prompt_tokens: int,
    random: np.random.Generator,
    progress: Told,
) -> DrawnRouting:
    layers = chance.shape[1]
    tokens = _MOST_CHANCES // (layers * chance.shape[2])
    longest = min(max(tokens // _FEWEST - _DECODED, _PROMPT[0]), _PROMPT[1])
    prompt = min(prompt_tokens, longest)
    length = prompt + _DECODED
    sequences = max(min(_SEQUENCES, tokens // length), _FEWEST)
    experts = np.empty((sequences * length, layers, top_k), dtype=np.uint16)
    for index in range(sequences):
        progress(index, sequences, "drawing routing")
        rows = np.tile(chance[index % len(chance)], (length, 1))
        drawn = systematic(rows, top_k, random).reshape(length, layers, top_k)
        experts[index * length : (index + 1) * length] = drawn
    arrays = TraceArrays(
        experts,
        np.repeat(np.arange(sequences, dtype=np.int32), length),
        np.tile(np.arange(length, dtype=np.int32), sequences),
        np.tile((np.arange(length) >= prompt).astype(np.uint8), sequences),
    )
    return _document(model, arrays, "synthetic", said)


def _document(model: ModelSpec, arrays: TraceArrays, source: Source, said: str) -> DrawnRouting:
    document = trace_document(
        arrays,
        trace_bytes(arrays),
        model_hash=document_hash(model),
        moe_layers=model.moe_layers,
        expert_count=model.layers[model.moe_layers[0]].experts,
        source=source,
    )
    return DrawnRouting(document, arrays, said)
