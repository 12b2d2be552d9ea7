"""Words, the terminal timeline and the HTML page, on hand-made documents."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from moeplan import cli
from moeplan.bars import memory_bars
from moeplan.page import build_page
from moeplan.page_parts import KIND_GROUPS, MOST_EVENTS
from moeplan.terminal import LOOKS, draw_pass, lane_signs, pass_events, pass_indices
from moeplan.words import (
    decode_tokens_per_second,
    explain_plan,
    explain_trace,
    note_list,
    tokens_per_second,
)
from planner.documents import Event, Locations, Plan, Slowdown, Timeline, Trace, write_document
from planner.documents.timeline import EventKind
from tests.refusal import refusal

MS = 1_000_000


def signs(timeline: Timeline, channel: str, width: int) -> str:
    events, start, end = pass_events(timeline, 0)
    own = [event for event in events if event.channel == channel]
    return "".join(look.sign if look else " " for look in lane_signs(own, start, end, width))


def test_a_lane_is_drawn_slice_by_slice(plan: Plan) -> None:
    # twenty slices of 1 ms: embed 1, attention 2, router 1, experts 4, attention 2, router 1,
    # wait 3, expert 2, head 3, sample 1 (conftest)
    assert signs(plan.predicted.timeline, "compute", 20) == "◆▓▓▒████▓▓▒···██◆◆◆◆"
    # a prefetch of 5 ms at the start and a copy on demand of 3 ms at 11 ms
    assert signs(plan.predicted.timeline, "disk", 20) == "▓▓▓▓▓      ███      "


def test_a_slice_shows_what_fills_most_of_it() -> None:
    # ten ms in two slices: of the first 3 ms are an expert and 2 ms are idle; of the second 2 ms
    # are an expert and 3 ms idle
    events = [
        Event("expert", "compute", 0, 0, 0, 0, 3 * MS, 1, 0),
        Event("expert", "compute", 0, 0, 1, 8 * MS, 10 * MS, 1, 0),
    ]
    assert [look is not None for look in lane_signs(events, 0, 10 * MS, 2)] == [True, False]


def test_copies_of_other_passes_show_where_they_happen(plan: Plan) -> None:
    # pass 1 computes from 20 to 40 ms; a copy that belongs to pass 2 already runs inside it
    late = Event("copy_dense", "disk", 2, 0, -1, 38 * MS, 42 * MS, 0, 4096)
    timeline = Timeline.of([*plan.predicted.timeline.events(), late])
    assert pass_indices(timeline) == [0, 1]
    events, start, end = pass_events(timeline, 1)
    assert (start, end) == (20 * MS, 40 * MS)
    assert late in events


def test_a_pass_is_drawn_with_its_layers_and_a_legend(plan: Plan) -> None:
    text = draw_pass(plan.predicted.timeline, 0, head_layer=2, width=70).plain
    ruler, compute, disk, axis, *legend = text.splitlines()
    # 60 columns for 20 ms: layer 0 begins at 1 ms, layer 1 at 8 ms, the head at 16 ms
    assert ruler.index("L0") == 10 + 3
    assert ruler.index("L1") == 10 + 24
    assert ruler.index("head") == 10 + 48
    assert compute.startswith("compute   ◆")
    assert disk.startswith("disk      ▓")
    assert axis.endswith("20 ms")
    words = " ".join(legend)
    assert "bubble: compute waits" in words
    assert "copy on demand" in words
    assert "copy of dense parts" not in words  # there is none in this pass


def test_every_event_kind_has_a_look_and_a_colour() -> None:
    kinds = set(EventKind.__args__)
    assert {kind for look in LOOKS for kind in look.kinds} == kinds
    assert set(KIND_GROUPS) == kinds


def test_a_plan_in_words(plan: Plan) -> None:
    text = "\n".join(explain_plan(plan))
    for said in (
        "tiny-moe in float32 on cpu: 4 requests",
        "1 group of n = 2 batches of b = 2",
        "1 expert, the dense parts of 2 of 2 layers, 1 of 1 head tile",
        "before the router has spoken: 2 experts (1.0 a layer), in a fixed order",
        "3 slots for experts in flight, of which 1 only for copies on demand",
        "tokens/s 200 (180 to 210) in all, 200 in decode alone",
        "waits 15% of the time: 0% for dense parts, 15% for experts",  # 6 of 40 ms
        "stopped at its limit of time or work",
        "Bound, for plans with n x b = 2 x 2 only: no plan whose copies ahead and their order are "
        "fixed before routing is known, without caching,",
        "takes less than 4.8 ms a token; gap 4.00%: no more than this can be saved with these",
        "klotski 1.20 times that, all-experts 2.00 times that",  # 6 and 10 over 5
    ):
        assert said in text, said
    assert "no copy begins" not in text
    assert "as long as two batches" not in text  # notes come apart, as a list
    for bound, said in (
        ("clairvoyant", "not even one that knows the routing beforehand"),
        ("physical", "the computation alone takes"),
    ):
        text = explain_plan(dataclasses.replace(plan, bound_class=bound))[-1]
        assert said in text


def test_a_plan_that_copies_nothing_ahead_says_so(plan: Plan) -> None:
    layers = tuple(dataclasses.replace(layer, prefetch=()) for layer in plan.policy.layers)
    bare = dataclasses.replace(plan, policy=dataclasses.replace(plan.policy, layers=layers))
    text = "\n".join(explain_plan(bare))
    said = "No expert is copied before the router has spoken: what it chooses is copied on demand. "
    assert f"{said}3 slots for experts in flight" in text
    assert "andidates" not in text


def test_what_is_held_back_is_said(plan: Plan) -> None:
    held = dataclasses.replace(plan, policy=dataclasses.replace(plan.policy, hold=1))
    said = "up to its router, no copy begins that a layer beyond the next needs."
    assert said in "\n".join(explain_plan(held))


def test_a_bound_says_at_what_slowdowns_it_holds(plan: Plan) -> None:
    slowed = dataclasses.replace(plan.predicted, slowdown=Slowdown(decode=1.25))
    text = explain_plan(dataclasses.replace(plan, predicted=slowed))[-1]
    said = "only (with copies and computation as slow beside each other as in this one): no plan"
    assert said in text
    assert "as slow beside" not in explain_plan(plan)[-1]


def test_a_finished_search_with_a_gap_says_that_the_bound_may_be_loose(plan: Plan) -> None:
    text = explain_plan(dataclasses.replace(plan, stop="optimal"))[-1]
    assert "finished: its model of the problem holds nothing better" in text
    assert "gap 4.00%" in text
    assert "less where the bound is loose" in text
    tight = dataclasses.replace(plan, stop="optimal", bound=plan.objective, gap=0.0)
    assert "loose" not in explain_plan(tight)[-1]


def test_notes_are_a_list_with_indented_lines() -> None:
    console = Console(width=20, record=True, file=io.StringIO())
    console.print(note_list(("one two three four five six", "seven")))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines == ["• one two three four", "  five six", "• seven"]


def of_other_work(trace: Trace) -> Trace:
    """As if two prompts of 3 tokens had been run: the plan is for 4 of 8."""
    totals = dataclasses.replace(trace.totals, requests=2, prompt_tokens=6, new_tokens=4)
    return dataclasses.replace(trace, totals=totals)


def test_other_work_than_planned_is_not_judged(plan: Plan, trace: Trace) -> None:
    other = of_other_work(trace)
    said = "planned for 4 requests of 8+2 tokens, ran 2 of 3+2: not comparable"
    text = "\n".join(explain_trace(other, plan))
    assert said in text
    assert "slower" not in text
    page = build_page(plan, other)
    assert said in page
    assert "measured against predicted" not in page
    assert "measured / predicted" not in page
    page = build_page(plan, trace)
    # 100 of 200 tokens/s
    card = "-50.0%</b><span>measured against predicted tokens/s, outside the predicted 90% interval"
    assert card in page
    # everything took twice as long as predicted
    assert "<td>2.00</td>" in page
    assert "<td>0.50</td>" not in page


def test_a_run_in_words(plan: Plan, trace: Trace) -> None:
    assert tokens_per_second(trace) == pytest.approx(100.0)  # 8 tokens in 80 ms
    assert decode_tokens_per_second(trace, 4) == pytest.approx(100.0)  # 4 tokens in 40 ms
    assert decode_tokens_per_second(trace, 8) is None  # all tokens came from prefill
    text = "\n".join(explain_trace(trace, plan))
    assert "tokens/s 100 in all: 8 new tokens in 80 ms, 50% of it prefill, in 2 passes" in text
    assert text.endswith(
        "(180 to 210); the run was 50% slower, outside the predicted 90% interval."
    )
    paced = dataclasses.replace(trace, paced_bytes_per_second=2**20)
    assert "disk paced to 1.0 MiB/s" in explain_trace(paced)[0]


@pytest.mark.parametrize(
    ("wall_ms", "inside", "far"),
    # 8 tokens; predicted are 200 tokens/s, from 180 (in 44.4 ms) to 210 (in 38.1 ms)
    [
        (44, True, "9% slower"),
        (45, False, "11% slower"),
        (39, True, "3% faster"),
        (38, False, "5% faster"),
    ],
)
def test_a_run_within_the_interval_is_as_predicted(
    plan: Plan,
    trace: Trace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    wall_ms: int,
    inside: bool,
    far: str,
) -> None:
    totals = dataclasses.replace(trace.totals, wall_ns=wall_ms * MS, decode_ns=20 * MS)
    ran = dataclasses.replace(trace, totals=totals)
    where = f"{'within' if inside else 'outside'} the predicted 90% interval"
    said = f"{where} ({far})" if inside else f"{far}, {where}"
    assert explain_trace(ran, plan)[-1].endswith(f"; the run was {said}.")
    assert f"measured against predicted tokens/s, {where}</span>" in build_page(plan, ran)
    write_document(plan, tmp_path / "plan.json")
    write_document(ran, tmp_path / "trace.json")
    argv = ["verify", str(tmp_path / "plan.json"), str(tmp_path / "trace.json")]
    assert cli.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"tokens/s in all: {where}" in lines
    # 4 tokens in 20 ms are the 200 tokens/s that are predicted
    assert "tokens/s in decode: within the predicted 90% interval" in lines
    assert cli.main([*argv, "--max-error", "0.01"]) == 1
    assert f"more than 1%, {where}" in capsys.readouterr().err


def test_memory_bars_are_in_proportion() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(memory_bars({"kv": 1024, "experts": 4096, "logits": 0}, 10_240, width=40))
    lines = console.export_text().splitlines()
    assert [line.count("█") for line in lines] == [40, 10, 0]
    assert "5.0 KiB" in lines[-1]
    assert "of 10.0 KiB (50%)" in lines[-1]
    assert not any("logits" in line for line in lines)


def test_memory_bars_stay_in_proportion_where_lines_are_short() -> None:
    account = {"slots": 4096, "kv": 2048, "logits": 1}
    console = Console(file=io.StringIO(), width=50, color_system=None)
    console.print(memory_bars(account, 10_240, width=40))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    largest, half, least, _ = lines
    assert largest.count("█") == 2 * half.count("█") > 8
    assert least.rstrip().endswith("▏")
    assert "…" not in "".join(lines)


class _Page(HTMLParser):
    """Collects what a page would load, and its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script"
        if tag == "script":
            self.scripts.append("")
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action"):
                self.loads.append((tag, value or ""))

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


def parsed(page: str) -> _Page:
    parser = _Page()
    parser.feed(page)
    parser.close()
    return parser


def test_the_page_loads_nothing(plan: Plan, trace: Trace) -> None:
    page = build_page(plan, trace)
    assert parsed(page).loads == []
    assert not re.search(r"https?://|url\(|@import|\bimport\(|fetch\(", page)
    assert "{{" not in page


def test_the_page_holds_both_timelines(plan: Plan, trace: Trace) -> None:
    data = json.loads(parsed(build_page(plan, trace)).scripts[0])
    assert [track["name"] for track in data["tracks"]] == ["Predicted", "Measured"]
    predicted, measured = data["tracks"]
    assert predicted["lanes"] == ["compute", "disk"]
    assert predicted["passes"] == [[0, 0, 20 * MS], [1, 20 * MS, 40 * MS]]
    assert measured["passes"] == [[0, 0, 40 * MS], [1, 40 * MS, 80 * MS]]
    assert len(predicted["events"]["start"]) == 26
    assert data["experts"]["rows"][0]["mark"] == "-rp"  # experts 0 to 2 are all that is known
    assert data["experts"]["rows"][0]["tokens"] == [0, 6, 2]  # two passes of 3 and 1 rows
    assert data["experts"]["rows"][1]["mark"] == "p---"
    assert data["experts"]["rows"][1]["tokens"] == [0, 0, 0, 8]


def test_names_cannot_break_out_of_the_page(plan: Plan) -> None:
    evil = "</script><script>alert(1)</script><img src=x>"
    plan = dataclasses.replace(
        plan, locations=Locations("/p", f"/{evil}", None), notes=(evil, "{{data}}")
    )
    page = build_page(plan, None)
    parser = parsed(page)
    assert len(parser.scripts) == 2
    assert parser.loads == []


def test_a_long_timeline_is_cut_at_a_pass_and_said_so(plan: Plan) -> None:
    events = list(plan.predicted.timeline.events())[:11]
    many = []
    for index in range(MOST_EVENTS // 11 + 2):
        shift = index * 20 * MS
        many += [
            e._replace(pass_index=index, start_ns=e.start_ns + shift, end_ns=e.end_ns + shift)
            for e in events
        ]
    long = dataclasses.replace(
        plan, predicted=dataclasses.replace(plan.predicted, timeline=Timeline.of(many))
    )
    page = build_page(long, None)
    data = json.loads(parsed(page).scripts[0])
    kept = len(data["tracks"][0]["events"]["start"])
    assert kept <= MOST_EVENTS
    assert kept % 11 == 0  # whole passes
    assert "Only the first passes of the predicted timeline" in page


def test_show_prints_and_writes(
    plan: Plan, trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_document(plan, tmp_path / "plan.json")
    write_document(trace, tmp_path / "trace.json")
    files = [str(tmp_path / "trace.json"), str(tmp_path / "plan.json")]
    assert cli.main(["show", *files]) == 0
    out = capsys.readouterr().out
    assert "predicted, pass 1" in out
    assert "measured, pass 1" in out
    assert "Promised were tokens/s 200 (180 to 210)" in out
    assert "\n• n = 2 because" in out
    html = tmp_path / "report.html"
    assert cli.main(["show", *files, "--html", str(html)]) == 0
    # the page has it all: only its place is said
    assert capsys.readouterr().out.split() == ["The", "report", "is", "in", str(html)]
    assert html.read_text().startswith("<!doctype html>")
    assert "<li>n = 2 because" in html.read_text()
    assert cli.main(["show", *files, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["plan"]["memory"]["device"]["peak_bytes"] == 790_000
    assert document["trace"]["tokens_per_second"] == pytest.approx(100.0)


def test_show_refuses_what_does_not_fit(
    plan: Plan, trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other, run = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "t.json"
    write_document(plan, one)
    write_document(dataclasses.replace(plan, seed=7), other)
    write_document(trace, run)
    before = one.read_bytes()
    for argv, said in (
        ([one, other], "a second plan"),
        ([other, run], "another plan's run"),
        ([one, "--html", one], "one of the inputs"),
        ([one, "--pass", "5"], "has passes 0 to 1"),
        ([one, "--pass", "1", "--html", tmp_path / "r.html"], "--pass has no effect"),
        ([tmp_path / "none.json"], "no such file"),
        ([tmp_path], "cannot be read"),
    ):
        assert said in refusal(capsys, "show", *argv)
    assert one.read_bytes() == before


def test_how_experts_were_met_is_told(trace: Trace) -> None:
    served = {"resident": 6, "cached": 1, "on_demand": 3}
    totals = dataclasses.replace(trace.totals, served=served)
    (text,) = explain_trace(dataclasses.replace(trace, totals=totals))
    assert (
        "Of 10 experts that layers needed: 60% always in memory, 10% kept from before, 30% copied "
        "on demand."
    ) in text


def test_no_bar_speaks_of_head_tiles_alone_where_none_stays() -> None:
    # the final norm is in it, too, and stays where no tile does
    console = Console(file=io.StringIO(), width=100)
    console.print(memory_bars({"head": 4096, "kv": 8192}, 1 << 20))
    (line,) = [row for row in console.file.getvalue().splitlines() if "4.0 KiB" in row]  # type: ignore[attr-defined]
    assert line.startswith("final norm, head tiles that stay")
