"""What ``profile`` says of its measurements: figures, spreads, and what speaks against them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.table import Table

from moeplan.output import human_bytes, human_time
from planner.documents import Channel, Curve, Figure, Surface
from planner.profiles import Profile
from planner.threads import ratio_words, thread_words
from solvers.counting import counted

__all__ = ["doubts", "measured_table", "spreads"]

_MOST_SPREAD = 0.25


def _relative(curves: Sequence[Curve]) -> float:
    pairs = [
        (spread, duration)
        for curve in curves
        for spread, duration in zip(curve.spread_ns, curve.duration_ns, strict=True)
    ]
    return statistics.median(spread / max(duration, 1) for spread, duration in pairs)


def _surfaces(made: Profile) -> dict[str, Surface]:
    costs = made.costs
    found = {
        "attention, prefill": costs.attention_prefill,
        "attention, decode": costs.attention_decode,
    }
    if costs.cross_prefill is not None and costs.cross_decode is not None:
        found["cross attention, prefill"] = costs.cross_prefill
        found["cross attention, decode"] = costs.cross_decode
    return found


def _slowdowns(made: Profile) -> dict[str, Figure]:
    """How much longer copies, and each kind of computation in decode, take beside each other."""
    costs = made.costs
    found = {"copies beside computation": costs.copy_slowdown}
    for kind, figure in costs.slowdown_by_kind.items():
        found[f"{kind.replace('_', ' ')} beside copies"] = figure
    for form, slowed in (costs.form_slowdowns or {}).items():
        found[f"copies beside experts in {form}"] = slowed.copy
        found[f"expert in {form} beside copies"] = slowed.decode
    return found


def spreads(made: Profile) -> dict[str, float]:
    """Half the distance between the quartiles of each figure's samples, as a share of it.

    Of an operation it is the median over its sizes; ``reference`` is a fixed operation that is
    repeated through the profile, so its spread is the machine's drift.
    """
    reference = made.costs.reference_ns
    found = {"reference": (reference.spread or 0.0) / max(reference.value, 1.0)}
    for channel in made.hardware.channels:
        bandwidth = channel.bandwidth_bytes_per_second
        found[channel.name] = (bandwidth.spread or 0.0) / max(bandwidth.value, 1.0)
    for name, surface in _surfaces(made).items():
        found[name] = _relative(surface.curves)
    for kind, curve in made.costs.curves.items():
        found[kind.replace("_", " ")] = _relative([curve])
    for name, figure in _slowdowns(made).items():
        found[name] = (figure.spread or 0.0) / figure.value
    return found


def doubts(made: Profile, load_average: float, cores: int) -> list[str]:
    """Why the figures may be off, a sentence each; empty where nothing speaks against them.

    Parameters
    ----------
    made
        The profile.
    load_average
        Of the last minute before it was measured.
    cores
        That this process may use.
    """
    reasons = []
    if load_average > cores:
        reasons.append(
            f"the load average was {load_average:.1f} on {counted(cores, 'core')} at the start"
        )
    wide = {name: share for name, share in spreads(made).items() if share > _MOST_SPREAD}
    if wide:
        each = ", ".join(f"{name} {share:.0%}" for name, share in wide.items())
        reasons.append(f"spread above {_MOST_SPREAD:.0%}: {each}")
    return reasons


def measured_table(made: Profile) -> Table:
    """The figures, each with its spread."""
    table = Table(box=None, pad_edge=False)
    table.add_column("measured", no_wrap=True)
    table.add_column("")
    table.add_column("spread", justify="right")
    shares = spreads(made)

    def add(name: str, words: str) -> None:
        table.add_row(name, words, f"± {shares[name]:.0%}")

    for channel in made.hardware.channels:
        add(channel.name, _channel_words(channel))
    for name, surface in _surfaces(made).items():
        what = "contexts" if name == "attention, decode" else "prompts"
        first, last = surface.second[0], surface.second[-1]
        most = surface.curves[-1].rows[-1]
        add(
            name,
            f"{human_time(surface(1, first))} for 1 sequence, "
            f"{human_time(surface(most, last))} for {most:,}, at {what} of {first:,} and {last:,}",
        )
    for kind, curve in made.costs.curves.items():
        most = curve.rows[-1]
        name = kind.replace("_", " ")
        add(name, f"{human_time(curve(1))} for 1 row, {human_time(curve(most))} for {most:,}")
    for name, figure in _slowdowns(made).items():
        add(name, f"{figure.value:.2f} times as long as alone")
    writes = made.costs.kv_writes
    if writes is not None:
        size = writes.alone.rows[0]
        words = (
            f"{human_time(writes.alone(size))} for {human_bytes(size)}, "
            f"{human_time(writes.beside(size))} beside reads"
        )
        if writes.lost is not None:
            words += f", which are {human_time(writes.lost(size))} later"
        table.add_row(
            "writes of keys, values", words, f"± {_relative([writes.alone, writes.beside]):.0%}"
        )
    threads = made.costs.threads
    if threads is not None:
        table.add_row("threads", thread_words(threads.use), "")
        for name, (words, share) in ratio_words(threads.ratios).items():
            table.add_row(name, f"times as fast as one: {words}", f"± {share:.0%}")
    add("reference", "a fixed operation, repeated: the machine's drift")
    return table


def _channel_words(channel: Channel) -> str:
    bandwidth = channel.bandwidth_bytes_per_second
    paced = "" if channel.paced_bytes_per_second is None else ", paced"
    ahead = ""
    if channel.burst is not None:
        peak, depth = channel.burst.peak_bytes_per_second, channel.burst.depth_bytes
        ahead = f"; rested: {peak.value / 1e9:.2f} GB/s until {human_bytes(depth.value)} ahead"
    return (
        f"{bandwidth.value / 1e9:.2f} GB/s, {human_time(channel.latency_ns.value)} to begin "
        f"({bandwidth.source}{paced}){ahead}"
    )
