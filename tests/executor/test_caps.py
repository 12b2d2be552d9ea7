"""Memory caps of control groups, from made-up files and from a real group."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor import Engine, open_weights
from executor.caps import PROCESS_BYTES, Cap, check_cap, lowest_cap
from planner.documents import Workload, write_document
from planner.memory import smallest_policy
from solvers.errors import BudgetError

GIB = 1 << 30
LIMIT = str(GIB)
ONE = "memory.limit_in_bytes"
FIRST = "34 28 0:30 {root} {mount} rw,nosuid shared:13 - cgroup cgroup rw,memory"
SECOND = "30 23 0:26 {root} {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw"


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., Path]:
    """``process(groups, mount, limits, root)``: a process's folder; limits lie below the mount."""

    def make(groups: str, mount: str, limits: dict[str, str], root: str = "/") -> Path:
        place = tmp_path / "mount"
        for name, text in limits.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text + "\n")
        folder = tmp_path / "self"
        folder.mkdir()
        (folder / "cgroup").write_text(groups + "\n")
        lines = ["21 28 0:19 / /sys rw - sysfs sysfs rw", mount.format(root=root, mount=place)]
        (folder / "mountinfo").write_text("\n".join(lines) + "\n")
        return folder

    return make


@pytest.mark.parametrize(
    ("groups", "mount", "limits", "root", "lowest"),
    [
        # version 2: the lowest on the way up counts
        (
            "0::/a/b",
            SECOND,
            {"a/b/memory.max": "max", "a/memory.max": LIMIT},
            "/",
            "a/memory.max",
        ),
        (
            "0::/a/b",
            SECOND,
            {"a/b/memory.max": LIMIT, "a/memory.max": f"{2 * GIB}"},
            "/",
            "a/b/memory.max",
        ),
        # version 1, beside a version 2 without controllers
        (
            "5:cpu:/x\n4:memory:/a\n0::/",
            FIRST,
            {"a/memory.limit_in_bytes": LIMIT, "memory.limit_in_bytes": "9223372036854771712"},
            "/",
            "a/memory.limit_in_bytes",
        ),
        # in a container: its own group is what is mounted, or seen from within a namespace
        ("0::/docker/x", SECOND, {"memory.max": LIMIT}, "/docker/x", "memory.max"),
        (
            "4:memory:/docker/x",
            FIRST,
            {"memory.limit_in_bytes": LIMIT},
            "/",
            "memory.limit_in_bytes",
        ),
        ("0::/../x", SECOND, {"memory.max": LIMIT}, "/", "memory.max"),
        # none
        ("0::/a", SECOND, {"a/memory.max": "max"}, "/", None),
        ("4:memory:/", FIRST, {"memory.limit_in_bytes": "9223372036854771712"}, "/", None),
        ("0::/a", SECOND, {}, "/", None),
        ("5:cpu:/", FIRST, {"memory.limit_in_bytes": LIMIT}, "/", None),
    ],
)
def test_lowest_cap(
    groups: str,
    mount: str,
    limits: dict[str, str],
    root: str,
    lowest: str | None,
    process: Callable[..., Path],
    tmp_path: Path,
) -> None:
    found = lowest_cap(process(groups, mount, limits, root))
    assert found == (None if lowest is None else Cap(GIB, tmp_path / "mount" / lowest))


def test_no_control_groups(tmp_path: Path) -> None:
    assert lowest_cap(tmp_path / "none") is None


def test_a_cap_below_what_is_needed(process: Callable[..., Path]) -> None:
    needed = 5_000_000 + PROCESS_BYTES
    folder = process("0::/a", SECOND, {"a/memory.max": str(needed - 1)})
    with pytest.raises(BudgetError) as caught:
        check_cap(5_000_000, folder)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(f"5000000 bytes of the memory budget are needed and {PROCESS_BYTES} by")
    assert f"allows {needed - 1} (" in said
    assert said.endswith("at most 4999999 bytes")
    (folder.parent / "mount" / "a" / "memory.max").write_text(str(needed))
    check_cap(5_000_000, folder)


@pytest.mark.parametrize("group", [None, 3 * GIB])
def test_the_machine_is_a_cap_too(group: int | None, process: Callable[..., Path]) -> None:
    folder = process("0::/a", SECOND, {} if group is None else {"a/memory.max": str(group)})
    told = folder.parent / "meminfo"
    told.write_text(f"MemFree:         1 kB\nMemTotal:  {2 * GIB // 1024} kB\nHugePages_Total: 0\n")
    assert lowest_cap(folder) == Cap(2 * GIB, told)
    with pytest.raises(BudgetError, match=f"this machine has {2 * GIB} ") as caught:
        check_cap(2 * GIB - PROCESS_BYTES + 1, folder)
    assert str(caught.value).endswith(f": give a budget of at most {2 * GIB - PROCESS_BYTES} bytes")
    check_cap(2 * GIB - PROCESS_BYTES, folder)


def test_a_plan_for_a_larger_machine(checkpoint_of: Callable[..., Path], helpers: Any) -> None:
    """Keys and values of more sequences than any machine has room for."""
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        policy = replace(smallest_policy(source.model, 4), n_batches=1 << 14, batch_size=1 << 14)
    plan = helpers.plan(checkpoint, policy, Workload(1 << 28, 128, 64))
    assert plan.memory["device"].peak_bytes > 10 << 40
    with pytest.raises(BudgetError, match=r"but (this machine has|the control group allows) \d+"):
        Engine.from_plan(plan)


def test_a_real_group(
    checkpoint_of: Callable[..., Path], helpers: Any, capped: Any, tmp_path: Path
) -> None:
    """Refused by the engine, as the kernel counts: keys and values of 4,096 sequences."""
    checkpoint = checkpoint_of("mixtral")
    with open_weights(checkpoint) as source:
        policy = replace(smallest_policy(source.model, 4), n_batches=64, batch_size=64)
    plan = helpers.plan(checkpoint, policy, Workload(4096, 128, 64))
    write_document(plan, tmp_path / "plan.json")
    code = (
        "import sys; from pathlib import Path; from executor.engine import Engine;"
        "from planner.documents import Plan, load_document;"
        "Engine.from_plan(load_document(Plan, Path(sys.argv[1])))"
    )
    done, _ = capped(GIB, [sys.executable, "-c", code, str(tmp_path / "plan.json")])
    assert done.returncode == 1
    assert f"but the control group allows {GIB} (" in done.stderr
