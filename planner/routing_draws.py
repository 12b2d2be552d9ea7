"""Scenarios drawn from routing statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from planner.routing_sources import MOST_CELLS, RoutingSource
from solvers.counting import counted
from solvers.errors import OptionError

__all__ = ["check_work", "draw_passes", "draw_scenarios", "half_counts"]

Int64 = npt.NDArray[np.int64]

_MOST_SUMS = 1 << 34
"""Scenarios x batch x layers x experts: numbers added up in drawing, about 20 seconds of work."""
_MOST_SCENARIOS = 1 << 17
_MOST_DRAWN = 1 << 25
"""Scenarios x batch of sequences, drawn one by one."""
_MOST_TOKENS = 1 << 31
"""Independent tokens of a batch, and (x top_k) their choices: more than any prompt or service."""


def check_work(source: RoutingSource, count: int, batch: int, asked: int | None = None) -> None:
    """Refuse what would not end, or not fit into memory, before any of it is drawn.

    Parameters
    ----------
    source
        Statistics.
    count, batch
        As ``draw_scenarios``.
    asked
        What ``--scenarios`` said, where ``count`` follows from that.

    Raises
    ------
    OptionError
        Naming the largest number that works.
    """
    asked = count if asked is None else asked
    cells = len(source.layers) * source.experts
    size = f"{counted(len(source.layers), 'layer')} of {counted(source.experts, 'expert')}"
    most = min(MOST_CELLS // cells, _MOST_SCENARIOS) * asked // count
    if asked > most:
        raise OptionError(f"--scenarios {asked} is too many for {size}: at most {most} work")
    if source.heat:
        most = _MOST_TOKENS // (source.top_k or 1)
    else:
        most = min(_MOST_SUMS // (count * cells), MOST_CELLS // cells, _MOST_DRAWN // count)
    if batch > most:
        raise OptionError(
            f"--batch {batch} is too large for {asked} scenarios of {size}: at most {most} works"
        )


def draw_scenarios(
    source: RoutingSource,
    count: int,
    *,
    batch: int,
    seed: int,
    half: Literal["first", "second", "all"],
    domains: tuple[str, ...] | None = None,
    by_domain: bool = False,
    parts: bool = False,
) -> Int64:
    """Rows that batches ask of each expert: [count, layers, experts].

    Parameters
    ----------
    source
        Statistics.
    count
        Scenarios.
    batch
        Sequences in a batch; of a source that has no sequences, tokens.
    seed
        Of the drawing. ``first`` and ``second`` are disjoint halves of every domain's sequences: of
        a trace in recorded order, of shares after a shuffle (they are sorted by domain). Counts
        have no halves; other tokens are drawn instead.
    half
        Which half.
    domains
        Only these.
    by_domain
        Each batch is of one domain, domains in turn; otherwise batches mix them all.
    parts
        Of batches that mix all domains: every second one is of the second half of each domain's
        sequences (of those that ``half`` leaves), the others of the first. Needs sequences, and two
        of one domain.

    Raises
    ------
    OptionError
        If a domain is unknown, or there is nothing to draw from.
    """
    names = source.domains if domains is None else domains
    for name in names:
        if name not in source.domains:
            some = ", ".join(source.domains[:20])
            raise OptionError(f"routing domain {name!r} is unknown; there are {some}")
    if count < 1 or batch < 1:
        raise OptionError(f"{count} scenarios of {batch}: give positive numbers")
    check_work(source, count, batch)
    random = np.random.default_rng((seed, {"first": 0, "second": 1, "all": 2}[half]))
    if source.heat:
        return _draw_tokens(source, names, count, batch, random, by_domain)
    pools = [_half(source, source.sequences[name], half) for name in names]
    if parts:
        cut = [len(pool) // 2 for pool in pools]
        pools = [
            np.concatenate([pool[:at] for pool, at in zip(pools, cut, strict=True)]),
            np.concatenate([pool[at:] for pool, at in zip(pools, cut, strict=True)]),
        ]
    elif not by_domain:
        pools = [np.concatenate(pools)]
    if min(len(pool) for pool in pools) < 1:
        raise OptionError("a half of the routing statistics holds no sequence: record more")
    result = np.zeros((count, len(source.layers), source.experts), dtype=np.int64)
    orders: list[npt.NDArray[np.int64]] = [np.empty(0, dtype=np.int64) for _ in pools]
    for index in range(count):
        at = index % len(pools)
        pool = pools[at]
        # without replacement as long as there are sequences
        rounds = max(-(-(batch - len(orders[at])) // len(pool)), 0)
        more = [random.permutation(len(pool)) for _ in range(rounds)]
        orders[at] = np.concatenate([orders[at], *more])
        result[index] = pool[orders[at][:batch]].sum(axis=0)
        orders[at] = orders[at][batch:]
    return result


def draw_passes(
    source: RoutingSource,
    count: int,
    *,
    tokens: int,
    top_k: int,
    sequences: int | None = None,
    seed: int,
) -> Int64:
    """Rows of passes of so many tokens: [count, layers, experts].

    Each pass is of other sequences, of those that no placement was fitted to, and its tokens choose
    as these do, independently of each other.

    Parameters
    ----------
    tokens, top_k
        Tokens of a pass, and experts that each chooses.
    sequences
        That the tokens of a pass are of; None: as many as tokens.

    Raises
    ------
    OptionError
        As ``draw_scenarios``; or if ``sequences`` are given of a source that has none, or more than
        tokens.
    """
    if tokens * top_k > _MOST_TOKENS:
        raise OptionError(
            f"{counted(tokens, 'token')} of a pass are too many: at most {_MOST_TOKENS // top_k}"
        )
    random = np.random.default_rng((seed, 3))
    if source.heat:
        if sequences is not None:
            raise OptionError("--sequences has no effect: these statistics tell of tokens only")
        check_work(source, count, 1)
        tables = [heat / heat.sum(axis=1, keepdims=True) for heat in source.heat.values()]
        shares = np.broadcast_to(
            np.mean(tables, axis=0), (count, len(source.layers), source.experts)
        )
    else:
        batch = tokens if sequences is None else sequences
        if batch > tokens:
            raise OptionError(
                f"{counted(batch, 'sequence')} of only {counted(tokens, 'token')}: each has one at "
                "least"
            )
        known = sum(half_counts(source, source.domains, "second"))
        batch = min(batch, known) if sequences is None else batch
        drawn = draw_scenarios(source, count, batch=batch, seed=seed, half="second")
        total = drawn.sum(axis=2, keepdims=True)
        # a layer that nobody asked anything of
        shares = np.where(total > 0, drawn / np.maximum(total, 1), 1 / source.experts)
    return random.multinomial(tokens * top_k, shares)


def half_counts(source: RoutingSource, domains: Sequence[str], half: str) -> list[int]:
    """Sequences of each domain in a half."""
    return [len(_half(source, source.sequences[name], half)) for name in domains]


def _half(source: RoutingSource, array: Int64, half: str) -> Int64:
    if half == "all":
        return array
    if source.kind == "shares":
        array = array[np.random.default_rng(0).permutation(len(array))]
    middle = len(array) // 2
    return array[:middle] if half == "first" else array[middle:]


def _draw_tokens(
    source: RoutingSource,
    names: tuple[str, ...],
    count: int,
    tokens: int,
    random: np.random.Generator,
    by_domain: bool,
) -> Int64:
    """Independent tokens, each with top_k choices (1 where that is not known)."""
    rows = tokens * (source.top_k or 1)
    tables = [source.heat[name] / source.heat[name].sum(axis=1, keepdims=True) for name in names]
    if not by_domain:
        tables = [np.mean(tables, axis=0)]
    result = np.zeros((count, len(source.layers), source.experts), dtype=np.int64)
    for at, table in enumerate(tables):
        mine = range(at, count, len(tables))
        for layer, shares in enumerate(table):
            result[at :: len(tables), layer] = random.multinomial(rows, shares, size=len(mine))
    return result
