"""Control-C while native libraries load."""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import Any

import pytest

from moeplan import cli
from moeplan.interrupts import held, hold_in_extensions


def test_an_interrupt_waits_for_the_end() -> None:
    order = []

    def both() -> None:
        with held():
            with held():
                signal.raise_signal(signal.SIGINT)
                order.append("inner")
            order.append("outer")

    with pytest.raises(KeyboardInterrupt):
        both()
    assert order == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_extension_is_not_interrupted_while_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    hold_in_extensions()
    hold_in_extensions()
    finder = sys.meta_path[0]
    assert type(sys.meta_path[1]) is not type(finder)
    import ortools.sat.python as package

    started = []

    def start(self: Any, spec: Any) -> ModuleType:
        signal.raise_signal(signal.SIGINT)
        started.append(spec.name)
        return ModuleType(spec.name)

    monkeypatch.setattr(ExtensionFileLoader, "create_module", start)
    name = "ortools.sat.python.cp_model_helper"
    spec = finder.find_spec(name, package.__path__, None)  # type: ignore[union-attr]
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(KeyboardInterrupt):
        spec.loader.create_module(spec)
    assert started == [name]
    assert finder.find_spec("json", None, None) is None  # type: ignore[union-attr]


def test_an_interrupt_before_the_program_has_started_is_a_document_too(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    def ends(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(cli, "main", interrupted)
    monkeypatch.setattr(os, "_exit", ends)
    monkeypatch.setattr(sys, "argv", ["moeplan", "catalog", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.entry()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert ended.value.code == 130
    said = capfd.readouterr()
    assert json.loads(said.out)["error"]["class"] == "Interrupted"
    assert said.err == "moeplan: interrupted\n"
