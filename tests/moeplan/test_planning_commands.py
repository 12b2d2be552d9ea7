"""``compare``, ``sweep``, ``explain`` and an interrupted ``plan``, as they are typed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moeplan import cli
from moeplan.commands.explain import _forms, sentences
from moeplan.options import parse_range
from moeplan.plots import Chart, Line, TableOf, build_plots
from planner.documents import ExpertError, FormName, HostCompute, Plan, ThreadUse, load_document
from planner.explain import Explanation, Hosting, Prefetching, Price, Unit
from planner.sweep import GroupPoint
from solvers.errors import OptionError
from tests.refusal import refusal

WORK = ("--requests", 4, "--prompt-tokens", 14, "--new-tokens", 4)


def plot_data(page: str) -> list[dict[str, Any]]:
    (data,) = re.findall(r"^const plots = (.*);$", page, re.M)
    found: list[dict[str, Any]] = json.loads(data)
    return found


def test_compare_with_bounds_and_plots(
    made: SimpleNamespace, command_json: Callable[..., Any], tmp_path: Path
) -> None:
    html = tmp_path / "compare.html"
    # which bounds there are does not follow from what was measured here
    argv = ["compare", made.profile, "--memory", made.memory, *WORK, "--time-limit", 0.4]
    argv.append("--no-predictors")
    found = command_json(*argv, "--solvers", "cpsat,lifo,belady", "--html", html)
    assert [row["solver"] for row in found["rows"]] == ["cpsat", "lifo"]
    (bound,) = found["bounds"]
    assert bound["solver"] == "belady"
    for row in found["rows"]:
        assert bound["value"] <= row["objective"]
        assert row["bound"] <= row["objective"]
        if row["bound_class"] == "physical":
            assert row["price_of_information"] is None
        else:
            assert row["clairvoyant_bound"] <= row["plan_bound"] <= row["objective"]
            known = row["objective"] - row["clairvoyant_bound"]
            assert row["price_of_information"] == pytest.approx(known)
    page = html.read_text()
    # needs nothing else
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", page)
    by_time, by_memory, by_group = plot_data(page)
    assert [line["name"] for line in by_memory["lines"]] == ["cpsat", "lifo"]
    assert by_time["lines"][0]["x"] == pytest.approx([0.05, 0.1, 0.2, 0.4])
    for line in by_memory["lines"]:
        speeds = [speed for speed in line["y"] if speed is not None]
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(speeds))
    assert by_group["lines"][0]["x"][0] == 1
    for name in ("cpsat", "lifo", "belady"):
        assert f"<td>{name}</td>" in page


def test_sweep(made: SimpleNamespace, command_json: Callable[..., Any], tmp_path: Path) -> None:
    html = tmp_path / "sweep.html"
    low, high = int(made.memory) // 4, int(made.memory) * 2
    argv = ["sweep", made.profile, "--memory", f"{low}..{high}", *WORK, "--steps", 4]
    found = command_json(*argv, "--solver", "flexgen", "--html", html)
    points = found["points"]
    assert [point["memory_bytes"] for point in points][:: len(points) - 1] == [low, high]
    assert [point["feasible"] for point in points][:: len(points) - 1] == [False, True]
    assert points[0]["smallest_bytes"] == found["smallest_bytes"] > low
    speeds = [p["plan"]["predicted"]["tokens_per_second"]["value"] for p in points if p["feasible"]]
    assert speeds == sorted(speeds)
    assert plot_data(html.read_text())[0]["lines"][0]["y"][0] is None


def test_options_of_plan_have_effect_in_compare_and_sweep(
    made: SimpleNamespace, command_json: Callable[..., Any]
) -> None:
    more = (*WORK, "--attention-window", 3, "--attention-sinks", 1, "--kv", "below")
    argv = (made.profile, "--memory", made.memory, *more, "--predictors")
    (row,) = command_json("compare", *argv, "--solvers", "lru")["rows"]
    assert row["workload"]["attention_window"] == 3
    assert (row["asked"]["kv"], row["asked"]["predictors"]) == ("below", True)
    twice = f"{made.memory}..{2 * int(made.memory)}"
    argv = ("sweep", made.profile, "--memory", twice, *more, "--steps", 2, "--solver", "lru")
    points = command_json(*argv)["points"]
    assert [point["plan"]["asked"]["kv"] for point in points] == ["below", "below"]
    assert [point["plan"]["workload"]["attention_sinks"] for point in points] == [1, 1]


def test_what_is_refused(
    made: SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = ("plan", made.profile, "--memory", made.memory, "--out", tmp_path / "plan.json")
    assert "needs costs of a CPU beside the device" in refusal(capsys, *plan, "--solver", "fiddler")
    assert "makes no plan" in refusal(capsys, *plan, "--solver", "belady")
    assert "no effect without --then" in refusal(capsys, *plan, "--tolerance", "2%")
    assert "is the first objective" in refusal(capsys, *plan, "--then", "throughput")
    several = ("compare", *plan[1:-2]), ("sweep", made.profile, "--memory", "1MiB..2MiB")
    for error in ("0", "0.01"):
        for command in (plan, *several):
            one = refusal(capsys, *command, "--allow-error", error)
            assert "no effect: the profile's store has its experts in one form" in one
    pairs = refusal(capsys, "sweep", "--models", "m.json", "--allow-error", "0.01")
    assert "--allow-error is for a sweep of a PROFILE_DIR, and none was given" in pairs
    for command in ("offload", "parallel"):
        assert "No such option: --allow-error" in refusal(capsys, command, "--allow-error", "0.01")
    alone = refusal(capsys, *plan, "--attention-sinks", 2)
    assert alone.endswith("--attention-sinks has no effect without --attention-window")
    window = (*plan, *WORK, "--attention-window")
    assert "of 14 tokens and 4 sinks has no effect" in refusal(capsys, *window, 14)
    share = (*plan, "--then", "bytes", "--tolerance")
    for text in ("2", "x%", "100%", "-1%", "nan%"):
        assert "write it like 2%" in refusal(capsys, *share, text)
    sweep = ("sweep", made.profile, "--memory")
    assert "no budget of the range works" in refusal(capsys, *sweep, "1KiB..2KiB")
    assert "is not a range" in refusal(capsys, *sweep, "1GiB")
    both = (("compare", made.profile, "--memory", made.memory), (*sweep, "1MiB..2MiB"))
    for argv in both:
        assert "without --attention-window" in refusal(capsys, *argv, "--attention-sinks", 2)
        assert "--kv 'host' is unknown" in refusal(capsys, *argv, "--kv", "host")
    bound = (*both[0], "--solvers", "belady", "--predictors")
    assert "--predictors has no effect: belady makes no plan" in refusal(capsys, *bound)
    rules = (
        (*both[0], "--solvers", "lru,lifo"),
        (*both[1], "--solver", "lru"),
        (*plan, "--solver", "lru"),
    )
    for argv, names in zip(
        rules,
        ("lru, lifo follow rules and look", *["lru follows a rule and looks"] * 2),
        strict=True,
    ):
        told = refusal(capsys, *argv, "--no-predictors")
        assert told.endswith(f"--no-predictors has no effect: {names} ahead only where asked to")
    rule = tmp_path / "plan.json"
    assert cli.main([str(part) for part in (*plan, *WORK, "--solver", "lru")]) == 0
    capsys.readouterr()
    told = refusal(capsys, "explain", rule, "--time-limit", 1)
    assert told.endswith("--time-limit has no effect: lru follows a rule and does not search")
    rule.unlink()
    assert list(tmp_path.iterdir()) == []


def test_plan_and_run_with_an_attention_window(
    made: SimpleNamespace,
    command_json: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    out, outputs = tmp_path / "plan.json", tmp_path / "outputs.jsonl"
    argv = ["plan", made.profile, "--memory", made.memory, *WORK, "--solver", "lru", "--out", out]
    found = command_json(*argv, "--attention-window", 3, "--attention-sinks", 1)
    assert {**found["workload"], "attention_window": 3, "attention_sinks": 1} == found["workload"]
    assert command_json("check", out)["violations"] == []
    command_json("run", out, "--prompts", made.prompts, "--out", outputs)
    assert len(outputs.read_text().splitlines()) == 4
    assert cli.main(["show", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "attends to the first 1 token of its sequence and the last 3 tokens, not to all" in said
    line = refusal(capsys, "export", out, "--to", "accelerate", "--out", tmp_path / "x.json")
    assert "accelerate attends to all tokens, and this plan to a window of 3" in line


def test_plan_and_run_with_keys_and_values_below(
    made: SimpleNamespace,
    command_json: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    out, outputs, trace = (tmp_path / name for name in ("plan.json", "outputs.jsonl", "trace.json"))
    argv = ["plan", made.profile, "--memory", made.memory, *WORK, "--solver", "lru"]
    command_json(*argv, "--kv", "below", "--out", out)
    assert json.loads(out.read_text())["policy"]["kv"] == "below"
    assert command_json("check", out)["violations"] == []
    command_json("run", out, "--prompts", made.prompts, "--out", outputs, "--trace", trace)
    assert len(outputs.read_text().splitlines()) == 4
    kinds = json.loads(trace.read_text())["totals"]["count_by_kind"]
    assert kinds["write_kv"] == kinds["copy_dense"]
    assert cli.main(["show", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Keys and values of the layers whose dense parts are copied lie below" in said
    line = refusal(capsys, *argv, "--kv", "host", "--out", tmp_path / "x.json")
    assert "--kv 'host' is unknown; choose from auto, device, below" in line


def test_ranges() -> None:
    assert parse_range("1MiB..2MiB", "--memory") == (1 << 20, 2 << 20)
    for text in ("1MiB", "..", "1MiB..", "..1MiB", "2MiB..1MiB", "1MiB..1MiB", "a..b"):
        with pytest.raises(OptionError, match="--memory"):
            parse_range(text, "--memory")


def test_plots_without_plotly_are_refused_before_any_work(
    made: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    argv = ("compare", made.profile, "--memory", made.memory, "--html", "never.html")
    assert "pip install 'moeplan[plots]'" in refusal(capsys, *argv)


def test_a_page_holds_what_it_is_given() -> None:
    nasty = "</script><b>"
    chart = Chart(nasty, "x", "y", (Line(nasty, (1, 2), (None, 3.5), texts=(nasty, "")),), nasty)
    empty = Chart("nothing", "x", "y", ())
    page = build_plots(nasty, "below", [chart, empty], [TableOf("t", ("a",), ((nasty,),))])
    assert nasty not in page
    (plot,) = plot_data(page)
    assert plot["lines"][0]["y"] == [None, 3.5]
    assert "nothing" not in re.findall(r"<h2>(.*?)</h2>", page)


def test_explain_as_typed(made: SimpleNamespace, command_json: Callable[..., Any]) -> None:
    found = command_json("explain", made.plan, "--time-limit", 0.3)
    assert len(found["words"]) == 7
    assert found["words"][6].startswith("Threads: ")
    assert found["words"][0].startswith("Why n = ")
    assert found["residents"] <= found["units"]
    assert found["memory_price"]["bound_after"] <= found["memory_price"]["bound_before"]


def test_the_words_follow_from_the_numbers(plan: Plan) -> None:
    # the hand-made plan: 4 requests in one group of 2 x 2, 5 ms a token
    kept = Unit("expert", 0, 1, 0.5, 1 << 20, 2e-3)
    left = Unit("dense", 1, -1, 1.0, 1 << 20, 1e-3)
    memory_price = Price(100_000, 4.8e6, 4.56e6, 5e6, 4.5e6, 2, 2, 1e-3)
    found = Explanation(
        groups=(
            GroupPoint(2, 1, 2, 6e6, 500_000, True),
            GroupPoint(2, 2, 4, 5e6, 900_000, True),
        ),
        last_kept=kept,
        first_left_out=left,
        residents=3,
        units=11,
        compute_busy=0.4,
        channel_busy=0.95,
        binds="copies",
        memory={"dense": 300_000, "slots": 300_000, "experts": 100_000, "kv": 90_000},
        spare_bytes=210_000,
        memory_price=memory_price,
        bandwidth_price=Price(1e8, 4.8e6, 4.32e6, 5e6, 5.5e6, 2, 2, None),
        prefetching=Prefetching(2, 5e6, 6e6, 0.25),
    )
    group, residents, binds, memory, bandwidth, prefetching = sentences(plan, found)
    assert "one copy serves 4 of 4 requests" in group
    # 6 / 5 ms
    assert "short search finds takes 6 ms a token, 20.0% more than this plan" in group
    assert "There are no more requests" in group
    # 2e-3 ns a byte x 2^20 bytes = 2,097 ns
    assert "expert 1 of layer 0, which 50% of passes need (2.1 us of" in residents
    assert "the dense part of layer 1, which 100% of passes need (1.05 us of" in residents
    assert "3 of 11 units" in residents
    assert "order is not strict" not in residents
    assert "the copy channel binds. Compute is busy 40% of the time, the channel 95%" in binds
    # the budget is some 1 MB, so one more KiB is spoken of: 1e-3 ns a byte x 1,024 bytes
    assert "1 KiB more saves 1.02 ns a token" in memory
    # 4.56 / 4.8 = 0.95; 4.5 / 5 = 0.9
    assert "the bound for this n and b falls by 5.0%" in memory
    assert "4.5 ms a token (n x b = 2 x 2), 10.0% less than this plan's" in memory
    assert "A tenth more (100 MB/s): " in bandwidth
    fast = replace(found, bandwidth_price=Price(2.63e9, 4.8e6, 4.32e6, 5e6, 5.5e6, 2, 2, None))
    assert "A tenth more (2.63 GB/s): " in sentences(plan, fast)[4]
    # 0.48 ms for 0.1 GB/s, a tenth of what there is; a new plan of 5.5 ms is worse than this one
    assert "100 MB/s more saves 480 us a token with this n and b" in bandwidth
    assert "falls by 10.0%, and a new search finds nothing better" in bandwidth
    assert "the plan has 2 candidates for copying before their router has spoken" in prefetching
    assert "without that the same plan takes 6 ms a token, 20.0% more" in prefetching
    assert "25.0% are prefetched in vain" in prefetching
    # a new search without more memory finds 4.8 ms, so more memory takes only 0.3 ms of it
    again = replace(found, memory_price=replace(memory_price, base=4.8e6))
    assert "6.2% less than the 4.8 ms a token that it finds without" in sentences(plan, again)[3]
    # the bound of 4.8 ms is of this n and b and these slowdowns; 4.5 ms are below it, not below 4.4
    assert "this plan's (and less than this plan's bound, which is" in memory
    under = sentences(replace(plan, bound=4.4e6), found)[3]
    assert under.endswith("less than this plan's.")
    assert "do not fit: they need" not in group
    # what floating point leaves of nothing is nothing
    noise = replace(memory_price, slope=1e-9)
    assert "1 KiB more saves nothing" in sentences(plan, replace(found, memory_price=noise))[3]
    hosting = Hosting(HostCompute(6, 50), 5e6, 6e6, 2.5, 4.25, 2e5, 3e5)
    told = sentences(plan, replace(found, hosting=hosting, host_busy=0.14))
    assert "the channel 95%, the CPU 14%" in told[2]
    assert "In a mean pass it computes 2.5 of the 4.2 demanded experts" in told[-1]
    assert "200 us each, where a copy takes 300 us" in told[-1]
    assert "With all of them copied the same plan takes 6 ms a token, 20.0% more" in told[-1]
    tight = replace(found, groups=(replace(found.groups[0], fits=False), found.groups[1]))
    some = replace(plan.policy.layers[1], resident=(), raw=(2, 5))
    mix = replace(plan.policy, layers=(plan.policy.layers[0], some))
    *_, formats = sentences(
        replace(plan, policy=mix), replace(found, formats={"compressed": 5e6, "raw": 6e6})
    )
    assert "read as they are come experts 2 of layer 1, for" in formats
    assert "take 5 ms a token with all of them compressed and 6 ms a token with none" in formats
    threaded = replace(plan.policy, threads=ThreadUse(2, {"expert": 8}))
    *_, threads = sentences(replace(plan, policy=threaded), found)
    assert threads.startswith("Threads: 2 threads compute expert from 8 rows on; one thread comp")
    assert "do not fit: they need 488.3 KiB at least, of 976.6 KiB" in sentences(plan, tight)[0]
    # where it is a few bytes that are missing, rounded sizes would be the same
    nearly = replace(found.groups[0], fits=False, needed_bytes=1_000_010)
    few = sentences(plan, replace(found, groups=(nearly, found.groups[1])))[0]
    assert "do not fit: they need 1,000,010 bytes at least, of 1,000,000." in few


# a search without end, and baselines without end where there is a second argument; both say when
# they begin
ENDLESS = """
import sys, time
import planner.entries, solvers.sets
real = solvers.sets.Search.run
def run(self):
    real(self)
    print("searching", file=sys.stderr, flush=True)
    time.sleep(600)
solvers.sets.Search.run = run
def baseline(*arguments):
    print("comparing", file=sys.stderr, flush=True)
    time.sleep(600)
if sys.argv.pop(1) == "twice":
    planner.entries.run_strategy = baseline
from moeplan.cli import entry
entry()
"""


def pressed(times: str, argv: list[Any]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program in which Control-C is pressed so often."""
    command = [sys.executable, "-c", ENDLESS, times, *map(str, argv), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for word in ("searching", "comparing")[: 2 if times == "twice" else 1]:
            seen = next(line for line in process.stderr if line.strip() in (word, "Traceback"))
            assert seen.strip() == word
            process.send_signal(signal.SIGINT)
        text, errors = process.communicate(timeout=300)
    assert "Traceback" not in errors
    return process.returncode, text, errors


def test_forms_in_words(plan: Plan) -> None:
    assert _forms(plan) == []
    forms: tuple[FormName, ...] = ("own", "int8-1", "int8-1", "int4-1")
    layers = (replace(plan.policy.layers[0], forms=forms), *plan.policy.layers[1:])
    error = ExpertError("weights", 20_000_000, 12_345_678)
    own = replace(plan, policy=replace(plan.policy, layers=layers), expert_error=error)
    (text,) = _forms(own)
    assert "quantized are 2 in int8-1 and 1 in int4-1" in text
    assert "1.235% off on average" in text
    assert "2.000% was allowed" in text
    (text,) = _forms(replace(plan, expert_error=replace(error, mean_ppb=0)))
    assert "quantized are no experts" in text


def test_control_c_writes_the_best_plan_so_far(made: SimpleNamespace, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    argv = ["plan", made.profile, "--memory", made.memory, *WORK, "--out", out]
    code, text, errors = pressed("once", argv)
    assert code == 0, errors
    plan = load_document(Plan, out)
    assert plan.stop == "interrupted"
    assert plan.bound is not None
    assert json.loads(text)["stop"] == "interrupted"
    out.unlink()
    code, text, errors = pressed("twice", argv)
    assert code == 130, errors
    assert json.loads(text)["error"]["class"] == "Interrupted"
    assert not out.exists()
