"""``moeplan parallel`` from outside."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from executor.parallel import worker
from executor.parallel.group import RankProcesses
from moeplan import cli
from solvers.errors import BudgetError
from tests.refusal import refusal

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pycode-moe"


SECOND = ["--nodes", "2", "--node-rank", "1", "--coordinator"]


@pytest.fixture(scope="module")
def placement(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of statistics that are like the example's in shape."""
    folder = tmp_path_factory.mktemp("placement")
    shares = np.random.default_rng(1).dirichlet(np.arange(1, 17), size=(20, 8))
    np.savez(folder / "shares.npz", a=shares)
    out = folder / "placement.json"
    arguments = ["--routing", str(folder / "shares.npz"), "--devices", "2", "--scenarios", "10"]
    assert cli.main(["place", *arguments, "--method", "greedy", "--out", str(out)]) == 0
    return out


def test_outputs_and_what_each_device_did(
    placement: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out.jsonl"
    prompts.write_text("import os\nclass Node:\n")
    arguments = ["--placement", str(placement), "--prompts", str(prompts), "--max-new-tokens", "4"]
    arguments += ["--memory", "2MiB", "--rebalance", "2", "--out", str(out), "--json"]
    assert cli.main(["parallel", str(EXAMPLE), *arguments]) == 0
    said = json.loads(capsys.readouterr().out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["prompt"] for line in lines] == ["import os", "class Node:"]
    assert all(line["text"] for line in lines)
    assert said["new_tokens"] == sum(len(line["token_ids"]) for line in lines) == 8
    # 8 layers of 8 experts a device; 2 MiB hold 15 of 135 KiB
    assert [rank["slots"] for rank in said["ranks"]] == [15, 15]
    assert all(0 < rank["hit_rate"] < 1 for rank in said["ranks"])


def test_a_text_without_end_is_refused_before_it_is_tokenized(
    placement: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    # the example's context is 1024 tokens, of at most 256 characters
    prompts.write_text("import os\n" + "x" * (1024 * 256 + 1) + "\n")
    arguments = ["--placement", str(placement), "--prompts", str(prompts), "--max-new-tokens", "4"]
    assert cli.main(["parallel", str(EXAMPLE), *arguments]) == 2
    assert "prompt 2 has 262,145 characters, more than 1,024 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--eviction", "lru"], "--eviction has no effect"),
        (["--memory", "1KiB"], "smallest memory that works"),
        (["--batch-size", "9"], "have no effect"),
        (["--rebalance", "4"], "rebalancing after 4 passes has no effect"),
        (["--max-new-tokens", "2000"], "context of 1024"),
        (["--out", "{placement}"], "is one of the inputs"),
        (["--placement", "{prompts}"], "prompts.jsonl"),
        (["--store", "nowhere"], "no such store"),
        (["--nodes", "2"], "--node-rank, --coordinator missing"),
        (["--wait", "3"], "--wait has no effect on one machine"),
        ([*SECOND, "127.0.0.1:9"], "--prompts has no effect on machine 1"),
        ([*SECOND, "127.0.0.1:9", "--node-rank", "2"], "2 machines are 0 to 1"),
        ([*SECOND, "here"], "'here' is not HOST:PORT"),
        ([*SECOND, "[::1]:9", "--interface", "nope0"], "no network interface 'nope0'"),
        ([*SECOND, "192.0.2.1:9", "--node-rank", "0"], "cannot listen at 192.0.2.1:9"),
        (
            [*SECOND, "127.0.0.1:9", "--node-rank", "0", "--nodes", "3"],
            "2 devices, fewer than 3 machines",
        ),
    ],
)
def test_what_is_refused(
    more: list[str],
    words: str,
    placement: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"token_ids": [1, 2]}\n')
    arguments = ["--placement", str(placement), "--prompts", str(prompts), "--max-new-tokens", "4"]
    more = [one.format(placement=placement, prompts=prompts) for one in more]
    assert words in refusal(capsys, "parallel", EXAMPLE, *arguments, *more)


def test_a_budget_too_small_for_another_rank_is_bad_input(
    placement: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # ranks that are pipes: the second says at once what its process would
    refusal = BudgetError("rank 1: 7 bytes are too few: the smallest that works is 8 bytes", 8)
    ends = [os.pipe() for _ in range(5)]

    def start(processes: RankProcesses, _: str) -> SimpleNamespace:
        (_, first), (_, second), (one, _), (two, rank), (told, _) = ends
        processes._orders, processes._answers = [first, second], [one, two]
        os.write(rank, json.dumps({"error": worker._told(refusal)}).encode() + b"\n")
        return SimpleNamespace(
            returncode=0, poll=lambda: None, wait=lambda _: 0, stdin=None, stdout=os.fdopen(told)
        )

    monkeypatch.setattr(RankProcesses, "_start", start)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"token_ids": [1, 2]}\n')
    arguments = ["--placement", str(placement), "--prompts", str(prompts), "--max-new-tokens", "4"]
    out = tmp_path / "out.jsonl"
    assert cli.main(["parallel", str(EXAMPLE), *arguments, "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"moeplan: {refusal}\n"
    assert not out.exists()
    for end in (ends[0][0], ends[1][0], ends[2][1], ends[3][1], ends[4][1]):
        os.close(end)


@pytest.mark.parametrize("missing", ["--prompts", "--max-new-tokens"])
def test_what_is_run_is_said_on_the_first_machine(
    missing: str, placement: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("import os\n")
    given = {"--prompts": str(prompts), "--max-new-tokens": "4"}
    del given[missing]
    arguments = ["--placement", str(placement), *(one for pair in given.items() for one in pair)]
    assert cli.main(["parallel", str(EXAMPLE), *arguments]) == 2
    assert f"{missing} is needed" in capsys.readouterr().err
