"""A page of the executor's benchmark: one table for each checkpoint, cap and disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.record import machine_words

__all__ = ["markdown"]

Document = dict[str, Any]
_PEERS = ("accelerate", "llama.cpp")
_OWN = ("moeplan", "moeplan compressed")
_APART = ("transformers", "moeplan in memory")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


_COLUMNS: tuple[tuple[str, Callable[[Document], str]], ...] = (
    ("requests", lambda one: str(one["requests"])),
    ("engine", lambda one: one["engine"]),
    ("in all", lambda one: _number(one["tokens_per_second"])),
    ("decode", lambda one: _number(one["decode_tokens_per_second"])),
    ("GB read", lambda one: _number(one["bytes_read"] and one["bytes_read"] / 1e9)),
    ("load s", lambda one: _number(one["load_seconds"])),
    ("over limit", lambda one: _number(one["limit_ratio"])),
    ("inter, intra", lambda one: _bubbles(one)),
    ("same tokens", lambda one: _share(one["agreement"])),
    ("others", lambda one: _number(one.get("others_cores"))),
    ("setting", lambda one: one["setting"] or (one["reason"] or "")[:160]),
)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _bubbles(one: Document) -> str:
    if one["bubble_inter_share"] is None:
        return ""
    return f"{_share(one['bubble_inter_share'])}, {_share(one['bubble_intra_share'])}"


def markdown(body: Document) -> str:
    """The page."""
    parts = [
        "# moeplan against peers: tokens/s\n\n"
        f"{machine_words(body['about']['machine'])}. Prompts of "
        f"{body['prompt_tokens']} tokens. One process for each run, cold caches; the cap holds the "
        "process and its page cache. *In all* has prefill in it; loading stands apart. *Over "
        "limit*: decode time over the larger of a clairvoyant's bytes at the disk's own speed and "
        "of computation alone. *Inter, intra*: compute idle, as a share of the run. *Same "
        "tokens*: as moeplan with everything in memory. transformers and *moeplan in memory* run "
        "without a cap. *Others*: cores that the rest of the machine kept busy meanwhile.\n"
    ]
    groups: dict[tuple[Any, ...], list[Document]] = {}
    for cell in body["cells"]:
        keys = ("checkpoint", "cap_fraction", "throttle_bytes_per_second", "new_tokens")
        groups.setdefault(tuple(cell[key] for key in keys), []).append(cell)
    for (checkpoint, cap, throttle, new_tokens), cells in groups.items():
        disk = "disk not held" if throttle is None else f"disk held to {throttle / 1e6:.0f} MB/s"
        heading = f"## {checkpoint}, cap {cap:.0%}, {disk}, {new_tokens} new tokens"
        parts += [heading + "\n", _against(cells), _rows([name for name, _ in _COLUMNS])]
        parts[-1] += "".join(_row([show(cell) for _, show in _COLUMNS]) for cell in cells)
    return "\n".join(parts)


def _rows(names: list[str]) -> str:
    return _row(names) + _row(["---"] * len(names))


def _row(values: list[str]) -> str:
    return (
        "| " + " | ".join(value.replace("|", "/").replace("\n", " ") for value in values) + " |\n"
    )


def _against(cells: list[Document]) -> str:
    """moeplan over the others, in all."""
    lines = _rows(["requests", "engine", *_PEERS, "transformers", "best strategy"])
    for requests in sorted({cell["requests"] for cell in cells}):
        rates = {
            cell["engine"]: cell["tokens_per_second"]
            for cell in cells
            if cell["requests"] == requests and cell["tokens_per_second"]
        }
        strategies = [name for name in rates if name not in (*_PEERS, *_APART, *_OWN)]
        best = max(strategies, key=lambda name: rates[name], default="")
        for own in _OWN:
            if own in rates:
                others = (*_PEERS, "transformers", best)
                ratios = [f"{rates[own] / rates[x]:.2f}x" if x in rates else "" for x in others]
                lines += _row([str(requests), own, *ratios[:-1], f"{ratios[-1]} {best}".strip()])
    return "moeplan over others, in all:\n\n" + lines
