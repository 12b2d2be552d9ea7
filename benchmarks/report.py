"""Every table and plot of the benchmarks in one page and one Markdown file.

    python benchmarks/report.py                      # from the results that are there
    python benchmarks/report.py --run                # run all benchmarks that can run here first
    python benchmarks/report.py --run solvers seeds  # only those
    python benchmarks/report.py --check              # is the report up to date, and the README's
                                                     # figures in it? (exit code 1: not)

Writes benchmarks/results/report.md, with its charts in ``plots``, and report.html. Nothing is left
out: a benchmark without a result is told as not run, and a result that no section is known for gets
a plain one. ``--list`` names the benchmarks, their commands and minutes.
"""

# ruff: noqa: E402 (the search path comes before the imports)
from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# not the script's own folder, which has files of the names of packages
sys.path[:] = [one for one in sys.path if Path(one).resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(ROOT))

import argparse
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.report_parts.blocks import Bars, Block, Chart, Words, blocks_of, number, plain
from benchmarks.report_parts.pages import Part, html, markdown, picture
from benchmarks.report_parts.readme import missing_figures
from benchmarks.report_parts.sections import SECTIONS, Section
from benchmarks.report_parts.svg import draw

__all__ = ["FAULT", "build", "parts_of"]

RESULTS = ROOT / "benchmarks" / "results"
FAULT = "This part of the result could not be shown"


def parts_of(results: Path) -> list[Part]:
    """A part for each known benchmark, then one for each other result."""
    known = {section.name for section in SECTIONS}
    others = [
        Section(path.stem, path.stem.replace("_", " ").capitalize(), "", (), 0)
        for path in sorted(results.glob("*.json"))
        if path.stem not in known
    ]
    return [_part(section, results) for section in (*SECTIONS, *others)]


def _part(section: Section, results: Path) -> Part:
    path, page = results / f"{section.name}.json", results / f"{section.name}.md"
    command = " && ".join(f"python {one}" for one in section.commands)
    if not path.exists():
        return Part(section.name, section.title, section.words, command, None, "", ())
    document = json.loads(path.read_text(encoding="utf-8"))
    about = _about(document)
    body = {key: value for key, value in document.items() if key not in _TOLD}
    blocks: list[Block] = []
    headline = ""
    try:
        headline = section.headline(document)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        blocks.append(Words(f"{FAULT}: its sentence ({error!r})."))
    try:
        blocks += section.drawn(document)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        blocks.append(Words(f"{FAULT}: its charts ({error!r})."))
    if page.exists():
        blocks += blocks_of(page.read_text(encoding="utf-8"))
    else:
        try:
            blocks += section.shown(body)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            blocks += [Words(f"{FAULT}: its tables ({error!r})."), *plain(body)]
    told = tuple(blocks)
    return Part(section.name, section.title, section.words, command, about, headline, told)


_TOLD = ("about", "machine", "seed", "others_cores")


def _about(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a result says of itself; older ones say less."""
    about = dict(document.get("about") or {})
    about.setdefault("machine", document.get("machine"))
    if "seeds" not in about and "seed" in document:
        about["seeds"] = [document["seed"]]
    about.setdefault("others_cores", document.get("others_cores"))
    if about.get("others_cores") is None and document.get("load_average") is not None:
        load = number(float(document["load_average"]))
        about.setdefault("note", f"load average of the machine at the end: {load}")
    return about


def build(results: Path) -> dict[str, str]:
    """Path below ``results`` -> contents."""
    parts = parts_of(results)
    files = {"report.md": markdown(parts), "report.html": html(parts)}
    for part in parts:
        drawn = [block for block in part.blocks if isinstance(block, Chart | Bars)]
        for index, block in enumerate(drawn):
            files[picture(part.name, index)] = draw(block, alone=True)
    return files


def _stale(files: Mapping[str, str], results: Path) -> list[str]:
    found = [
        name
        for name, text in files.items()
        if not (results / name).exists() or (results / name).read_text(encoding="utf-8") != text
    ]
    plots = (f"plots/{path.name}" for path in (results / "plots").glob("*"))
    return found + [name for name in plots if name not in files]


def _write(files: Mapping[str, str], results: Path) -> None:
    shutil.rmtree(results / "plots", ignore_errors=True)
    for name, text in files.items():
        path = results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _run(names: list[str], work: Path, data: Path) -> list[str]:
    """Run benchmarks one after another; the names of those that failed."""
    asked = [one for one in SECTIONS if not names or one.name in names]
    left = sum(one.minutes for one in asked)
    failed = []
    for index, section in enumerate(asked):
        lacking = _lacking(section, data)
        head = f"[{index + 1}/{len(asked)}] {section.name}"
        if lacking:
            print(f"{head}: not run here, {lacking}", flush=True)
            failed += [section.name] if names else []
            left -= section.minutes
            continue
        hours = f"{left / 60:.1f} hours" if left > 90 else f"{left:.0f} minutes"
        print(f"{head}: about {section.minutes:g} minutes, {hours} left in all", flush=True)
        begun = time.monotonic()
        for command in section.commands:
            words = shlex.split(command)
            words = [_placed(word, {"WORK": work, "DATA": data}) for word in words]
            done = subprocess.run(
                [sys.executable, *words],
                cwd=ROOT,
                env={**os.environ, "GOMP_SPINCOUNT": "0"},
                check=False,
            )
            if done.returncode:
                print(f"{head}: exit code {done.returncode}", flush=True)
                failed.append(section.name)
                break
        print(f"{head}: {(time.monotonic() - begun) / 60:.1f} minutes", flush=True)
        left -= section.minutes
    return failed


def _placed(word: str, folders: Mapping[str, Path]) -> str:
    first, slash, rest = word.partition("/")
    return f"{folders[first]}{slash}{rest}" if first in folders else word


def _lacking(section: Section, data: Path) -> str:
    """What this machine lacks for a benchmark."""
    if "root" in section.needs and os.geteuid():
        return "root is needed for the kernel's limits"
    if "gpu" in section.needs and shutil.which("nvidia-smi") is None:
        return "a GPU is needed"
    if "data" in section.needs and not data.is_dir():
        return f"{data} is no folder: give --data"
    return ""


def main(argv: list[str] | None = None) -> int:
    """Write, run or check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [section.name for section in SECTIONS]
    parser.add_argument("--run", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--list", action="store_true", help="name the benchmarks")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "benchmarks")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    if unknown := [name for name in options.run or () if name not in names]:
        parser.error(f"--run: no benchmark {', '.join(unknown)}: there are {', '.join(names)}")
    if options.check and options.run is not None:
        parser.error("--check: it runs nothing; leave out --run")
    if options.run is not None and options.results != RESULTS:
        parser.error("--results: benchmarks that are run write to benchmarks/results")
    if options.list:
        for section in SECTIONS:
            needs = f" ({', '.join(section.needs)})" if section.needs else ""
            for command in section.commands:
                print(f"{section.name:14} {section.minutes:5g} min  python {command}{needs}")
        return 0
    failed = [] if options.run is None else _run(options.run, options.work, options.data)
    files = build(options.results)
    if options.check:
        stale = _stale(files, options.results)
        print("\n".join(f"stale: {name}" for name in stale) or "the report is up to date")
    else:
        stale = []
        _write(files, options.results)
        print(f"wrote {options.results / 'report.md'} and report.html")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = missing_figures(readme, files["report.md"])
    for sentence, lacking in missing.items():
        print(f"README: {', '.join(lacking)} stands in no section of the report: {sentence}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if stale or missing or failed else 0


if __name__ == "__main__":
    sys.exit(main())
