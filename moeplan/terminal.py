"""One pass of a timeline in the terminal: a lane a channel, a sign a slice of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from moeplan.output import human_time
from planner.documents import Event, Timeline

__all__ = ["LOOKS", "Look", "draw_pass", "lane_signs", "pass_events", "pass_indices"]


@dataclass(frozen=True, slots=True)
class Look:
    """How a group of event kinds is drawn: readable without colour, too."""

    sign: str
    style: str
    label: str
    kinds: tuple[str, ...]


LOOKS = (
    Look("█", "dark_orange", "experts", ("expert", "host_expert")),
    Look("▓", "dodger_blue1", "attention", ("attention", "cross_attention", "write_kv")),
    Look(
        "▒",
        "medium_purple",
        "router, shared, combine",
        ("router", "dense_mlp", "shared_expert", "combine"),
    ),
    Look("◆", "green3", "head, embedding, sampling", ("embed", "head", "sample")),
    Look(
        "·", "red", "bubble: compute waits", ("wait_dense", "wait_kv", "wait_expert", "wait_head")
    ),
    Look("█", "red3", "copy on demand", ("copy_demand",)),
    Look("▓", "gold3", "copy ahead of the router", ("copy_prefetch",)),
    Look("▒", "dodger_blue1", "copy of dense parts, KV", ("copy_dense", "copy_kv")),
    Look("◆", "green3", "copy of head tiles", ("copy_head",)),
)
_LOOK_OF = {kind: look for look in LOOKS for kind in look.kinds}
_UNKNOWN = Look("?", "white", "", ())
_LANES = ("compute", "cpu", "disk", "h2d", "d2h")


def pass_indices(timeline: Timeline) -> list[int]:
    """The passes of which the timeline has events of compute, ascending."""
    return sorted({event.pass_index for event in timeline.events() if event.channel == "compute"})


def pass_events(timeline: Timeline, index: int) -> tuple[list[Event], int, int]:
    """What every channel does while compute is in pass ``index``, and that span.

    Returns
    -------
    events, start_ns, end_ns
        Copies that belong to another pass but fall into the span are there, too.
    """
    own = [e for e in timeline.events() if e.channel == "compute" and e.pass_index == index]
    start, end = min(e.start_ns for e in own), max(e.end_ns for e in own)
    inside = [e for e in timeline.events() if e.start_ns < end and e.end_ns > start]
    return inside, start, end


def lane_signs(
    events: Iterable[Event], start_ns: int, end_ns: int, width: int
) -> list[Look | None]:
    """The kind that fills most of each of ``width`` slices of time; None where most is idle."""
    span = max(end_ns - start_ns, 1)
    slices: list[dict[Look, float]] = [{} for _ in range(width)]
    for event in events:
        look = _LOOK_OF.get(event.kind, _UNKNOWN)
        left = (max(event.start_ns, start_ns) - start_ns) * width / span
        right = (min(event.end_ns, end_ns) - start_ns) * width / span
        for column in range(int(left), min(int(right) + 1, width)):
            part = min(right, column + 1) - max(left, column)
            if part > 0:
                slices[column][look] = slices[column].get(look, 0.0) + part
    return [_most(filled) for filled in slices]


def _most(filled: dict[Look, float]) -> Look | None:
    if not filled:
        return None
    look = max(filled, key=lambda one: filled[one])
    return look if filled[look] >= 1.0 - sum(filled.values()) else None


def draw_pass(timeline: Timeline, index: int, head_layer: int, width: int) -> Text:
    """Lanes, layers and a legend of one pass.

    Parameters
    ----------
    timeline
        Predicted or measured.
    index
        The pass.
    head_layer
        Number of layers: the stage of the head.
    width
        Columns in all.
    """
    events, start, end = pass_events(timeline, index)
    columns = max(width - 10, 20)
    text = Text()
    text.append(_ruler(events, index, start, end, columns, head_layer), "dim")
    used: list[Look] = []
    for channel in _LANES:
        own = [event for event in events if event.channel == channel]
        if not own and channel != "compute":
            continue
        text.append(f"{channel:<9} ")
        for look in lane_signs(own, start, end, columns):
            if look is None:
                text.append(" ")
            else:
                text.append(look.sign, look.style)
                used.append(look)
        text.append("\n")
    text.append(f"{'':<10}0{human_time(end - start):>{columns - 1}}\n", "dim")
    text.append_text(_legend(used, width))
    return text


def _ruler(
    events: Sequence[Event], index: int, start: int, end: int, columns: int, head_layer: int
) -> str:
    """Marks where compute enters each layer, as many labels as fit."""
    entered: dict[int, int] = {}
    for event in events:
        if event.channel == "compute" and event.pass_index == index and event.layer >= 0:
            at = (max(event.start_ns, start) - start) * columns // max(end - start, 1)
            entered[event.layer] = min(entered.get(event.layer, columns), at)
    line = [" "] * (columns + 8)
    free = 0
    for layer, at in sorted(entered.items(), key=lambda item: item[1]):
        label = "head" if layer == head_layer else f"L{layer}"
        if at >= free and at + len(label) <= columns:
            line[at : at + len(label)] = label
            free = at + len(label) + 1
    return f"{'layer':<10}{''.join(line).rstrip()}\n"


def _legend(used: Sequence[Look], width: int) -> Text:
    text, column = Text(), width
    for look in LOOKS:
        if look in used:
            if column + len(look.label) + 5 > width:
                text.append(("\n" if column < width else "") + " " * 10)
                column = 10
            text.append(look.sign, look.style)
            text.append(f" {look.label}   ", "dim")
            column += len(look.label) + 5
    return text
