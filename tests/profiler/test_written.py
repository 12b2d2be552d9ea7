"""A profile's folder as ``kill -9`` leaves it between any two steps of replacing an older one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.catalogue import named_machine
from planner.documents import document_hash
from planner.drawn_routing import draw_routing
from planner.model_spec import read_model
from planner.offline import offline_profile
from planner.profiles import Profile, load_profile
from planner.routing import load_trace
from profiler.written import write_folder, write_routing
from solvers.errors import DocumentError

CONFIG = Path(__file__).parents[2] / "examples" / "configs" / "bulk-mixtral.json"


@pytest.fixture(scope="module")
def pair() -> tuple[Profile, Profile]:
    """Two profiles, of which no document is the other's."""
    made = []
    for seed, name in enumerate(("a100-80gb", "a100-40gb")):
        model = replace(read_model(CONFIG), name=name)
        routing = draw_routing("zipf:1", model, prompt_tokens=4, seed=seed)
        machine = named_machine(name)
        made.append(
            offline_profile(CONFIG, model, machine, routing, dtype="bfloat16", memory_bytes=1 << 30)
        )
    old, new = made
    assert not set(hashes(old)) & set(hashes(new))
    return old, new


def hashes(profile: Profile) -> list[str]:
    documents = (profile.hardware, profile.model, profile.costs, profile.routing, profile.index)
    return [document_hash(document) for document in documents]


def write(profile: Profile, out: Path) -> None:
    write_folder(
        out,
        profile.hardware,
        profile.model,
        profile.costs,
        profile.arrays,
        checkpoint=Path(profile.index.checkpoint),
        store=None,
        store_fingerprint=None,
        memory_bytes=profile.index.memory_bytes,
    )


def left_behind(work: Callable[[], object], out: Path, patch: pytest.MonkeyPatch) -> list[Path]:
    """Copies of ``out`` from before each step of ``work`` that gives a name or takes one away."""
    copies: list[Path] = []
    copying = False

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal copying
            if out.exists() and not copying:
                copying = True
                copies.append(out.with_name(f"before step {len(copies)}"))
                shutil.copytree(out, copies[-1])
                copying = False
            return real(*arguments, **options)

        return step

    with patch.context() as changed:
        for name in ("replace", "rename", "unlink", "link", "mkdir"):
            changed.setattr(os, name, watched(getattr(os, name)))
        work()
    return copies


def loaded(folder: Path) -> list[str] | str:
    """Hashes of what a folder holds, or the line by which it is refused."""
    try:
        return hashes(load_profile(folder))
    except DocumentError as error:
        return str(error)


def test_an_older_profile_is_replaced(
    pair: tuple[Profile, Profile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = pair
    out = tmp_path / "p"
    write(old, out)
    before = loaded(out)
    copies = left_behind(lambda: write(new, out), out, monkeypatch)
    after = loaded(out)
    assert before[:3] == hashes(old)[:3]
    assert after[:3] == hashes(new)[:3]
    assert not set(before) & set(after)
    found = [loaded(copy) for copy in copies]
    refused = [copy for copy, one in zip(copies, found, strict=True) if isinstance(one, str)]
    # from the old index's end to the new one's begin: the trace goes, four files come, the trace
    # comes, and the index does
    assert len(refused) == 7
    for copy in refused:
        assert loaded(copy) == (
            f"{copy}: half a profile: the command that wrote it was stopped, or is still at work; "
            "give that command again"
        )
    for copy in refused[1:-1]:  # nor is there routing for those that ask for it alone
        with pytest.raises(DocumentError, match=r"routing\.json: no such file"):
            load_trace(copy / "routing.json")
    # each of the others is one of the two, whole
    turn = copies.index(refused[0])
    assert turn > 6  # six files of the new one are written by then
    assert all(one == before for one in found[:turn])
    assert all(one == after for one in found[turn + 7 :])
    # the next command makes a whole one of what was left
    write(old, refused[3])
    assert loaded(refused[3]) == before
    assert len([*refused[3].iterdir()]) == 6


def test_older_routing_is_replaced(
    pair: tuple[Profile, Profile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = pair
    out = tmp_path / "r"
    write_routing(out, old.model, old.arrays)
    copies = left_behind(lambda: write_routing(out, new.model, new.arrays), out, monkeypatch)
    traces = []
    for copy in copies:
        if (copy / "routing.json").exists():
            traces.append(load_trace(copy / "routing.json")[0].model_hash)
        else:
            traces.append("")
    # not there before the arrays' step and before its own
    turn = traces.index("")
    assert set(traces[:turn]) == {document_hash(old.model)}
    assert traces[turn : turn + 2] == ["", ""]
    assert set(traces[turn + 2 :]) <= {document_hash(new.model)}
    assert load_trace(out / "routing.json")[0].model_hash == document_hash(new.model)


def test_modes_of_an_older_profile_stay(pair: tuple[Profile, Profile], tmp_path: Path) -> None:
    old, new = pair
    out = tmp_path / "profile"
    write(old, out)
    out.chmod(0o750)
    for index, path in enumerate(sorted(out.iterdir())):
        path.chmod((0o600, 0o640)[index % 2])
    modes = {path.name: path.stat().st_mode for path in (out, *out.iterdir())}
    write(new, out)
    assert load_profile(out).costs == new.costs
    assert {path.name: path.stat().st_mode for path in (out, *out.iterdir())} == modes
