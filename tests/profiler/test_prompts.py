"""Bundled prompts."""

from __future__ import annotations

import inspect
from pydoc_data.topics import topics

import pytest

from profiler.prompts import bundled_prompts
from solvers.errors import UnsupportedError


def test_prompts_are_the_same_each_time_and_differ_from_each_other() -> None:
    prompts = bundled_prompts()
    assert prompts == bundled_prompts()
    assert len(prompts) == len(set(prompts)) == 64
    assert bundled_prompts(10) == prompts[:10]


def test_prompts_are_of_mixed_length_and_kind() -> None:
    prompts = bundled_prompts(32)
    lengths = {len(prompt) for prompt in prompts}
    assert min(lengths) == 120
    assert max(lengths) == 960
    prose = [any(prompt in text for text in topics.values()) for prompt in prompts]
    # code and prose in turn; no excerpt of a module stands in the help topics
    assert prose == [False, True] * 16
    assert all(prompt.strip() for prompt in prompts)


def test_a_python_without_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", none)
    with pytest.raises(UnsupportedError, match="give prompts of your own"):
        bundled_prompts(2)
