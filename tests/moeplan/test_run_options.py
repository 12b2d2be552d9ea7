"""``run``: drawing, stopping, verifying, and what is kept when a run is stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from executor import Engine, Sampling
from executor.generation import Generation
from executor.tokenizer import load_tokenizer
from moeplan import cli
from planner.documents import Plan, load_document
from solvers.errors import RunError
from tests.refusal import refusal


@pytest.fixture(scope="module")
def run(made: SimpleNamespace, command_json: Callable[..., Any]) -> Callable[..., list[Any]]:
    """``run(*options)``: the outputs."""

    def work(*options: Any) -> list[Any]:
        found = command_json("run", made.plan, "--prompts", made.prompts, *options)
        outputs: list[Any] = found["outputs"]
        return outputs

    return work


def test_drawn_as_the_engine_draws(made: SimpleNamespace, run: Callable[..., list[Any]]) -> None:
    outputs = run("--temperature", 1.5, "--top-k", 20, "--top-p", 0.9, "--seed", 7, "--verify")
    texts = made.prompts.read_text().splitlines()
    with Engine.from_plan(load_document(Plan, made.plan)) as engine:
        want = engine.generate(texts, sampling=Sampling(1.5, 20, 0.9, 7))
    assert [one["token_ids"] for one in outputs] == [list(one.token_ids) for one in want]
    assert outputs != run("--temperature", 1.5, "--top-k", 20, "--top-p", 0.9, "--seed", 8)


def test_stopped_by_texts_and_tokens(made: SimpleNamespace, run: Callable[..., list[Any]]) -> None:
    free = run()
    token = free[0]["token_ids"][1]
    letter = next(one for one in free[2]["text"] + free[3]["text"] if one.isascii())
    decode = load_tokenizer(made.checkpoint).decode

    def ended(ids: list[int]) -> list[int]:
        for count in range(1, len(ids)):
            if ids[count - 1] == token or letter in decode(ids[:count]):
                return ids[:count]
        return ids

    want = [ended(one["token_ids"]) for one in free]
    assert len(want[0]) < 4
    outputs = run("--stop-token", token, "--stop", "never said", "--stop", letter)
    assert [one["token_ids"] for one in outputs] == want


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--top-p", "0.9"], "--top-p has no effect without --temperature"),
        (["--top-k", "3"], "--top-k has no effect without --temperature"),
        (["--seed", "3"], "--seed has no effect without --temperature"),
        (["--temperature", "0"], "temperature 0.0 is not above 0"),
        (["--temperature", "1", "--top-p", "1"], "top-p 1.0 does not lie between"),
        (["--temperature", "1", "--top-k", "256"], "top-k 256 has no effect"),
        (["--temperature", "1", "--seed", "-1"], "seed -1"),
        (["--stop", ""], "an empty text cannot stop"),
        (["--stop-token", "256"], "stop token 256 is outside the vocabulary"),
    ],
)
def test_refused(
    options: list[str],
    said: str,
    made: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.jsonl"
    argv = ["run", made.plan, "--prompts", made.prompts, "--out", out, *options]
    assert said in refusal(capsys, *argv)
    assert not out.exists()


@pytest.mark.parametrize(
    ("stopped_by", "code"), [(KeyboardInterrupt(), 130), (RunError("the disk is gone"), 1)]
)
def test_finished_outputs_are_kept(
    stopped_by: BaseException,
    code: int,
    made: SimpleNamespace,
    run: Callable[..., list[Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the third pass; the second prompt's output had ended with its first token."""
    free = run()
    stop = free[1]["token_ids"][0]
    ended = [one for one in free if stop in one["token_ids"][:2]]
    kept = [one["token_ids"][: one["token_ids"].index(stop) + 1] for one in ended]
    real, passes = Generation._pass, 0

    def work(self: Generation) -> Any:
        nonlocal passes
        passes += 1
        if passes == 3:
            raise stopped_by
        return real(self)

    monkeypatch.setattr(Generation, "_pass", work)
    out, trace = tmp_path / "out.jsonl", tmp_path / "trace.json"
    argv = ["run", made.plan, "--prompts", made.prompts, "--stop-token", stop]
    assert cli.main(list(map(str, [*argv, "--out", out, "--trace", trace]))) == code
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["token_ids"] for line in lines] == kept
    assert [line["prompt"] for line in lines] == [one["prompt"] for one in ended]
    assert not trace.exists()
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"moeplan: {len(kept)} of 4 outputs had ended: see {out}"
    assert len(said) == 2


def test_a_refusal_is_one_line_also_where_the_disk_is_another(
    made: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["run", made.plan, "--prompts", made.prompts, "--disk-bandwidth", "1GB/s"]
    line = refusal(capsys, *argv, "--stop-token", -1)
    assert "stop token -1 is outside the vocabulary" in line
