"""Faults that were found by breaking things: each stands for its kind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from moeplan.options import check_output, read_prompts
from planner.documents import Policy, Workload, load_document
from planner.documents import base as documents
from solvers.errors import DocumentError, InputError, OptionError


def test_an_output_never_takes_the_place_of_a_device_or_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OptionError, match="device or a pipe"):
        check_output(pipe, "--out")
    with pytest.raises(OptionError, match="device or a pipe"):
        check_output(Path(os.devnull), "--out")


def test_an_output_never_lies_in_a_folder_that_is_read(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "link").symlink_to(checkpoint)
    for path in (
        checkpoint / "model.safetensors",
        checkpoint / "new.jsonl",
        tmp_path / "link" / "new.jsonl",
    ):
        with pytest.raises(OptionError, match="lies in"):
            check_output(path, "--out", [checkpoint, None, tmp_path / "missing"])
    check_output(tmp_path / "new.jsonl", "--out", [checkpoint])


@pytest.mark.parametrize(
    "line", ['{"prompt": "\\ud800"}', '{"token_ids": [99999999999999999999999]}']
)
def test_what_no_tokenizer_can_take_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match="line 1"):
        read_prompts(path)


def test_a_file_without_end_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_MOST_BYTES", 100)
    path = tmp_path / "workload.json"
    path.write_text(json.dumps({"kind": "workload"}) + " " * 100)
    with pytest.raises(DocumentError, match="larger than any workload"):
        load_document(Workload, path)


def test_a_policy_without_layers_is_no_policy() -> None:
    schema = TypeAdapter(Policy).json_schema()
    assert schema["properties"]["layers"]["minItems"] == 1
