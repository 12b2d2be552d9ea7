"""Writes ``docs/reference``: the commands and the public Python names, from the code itself.

``python docs/generate.py`` writes, ``python docs/generate.py --check`` says whether it would change
anything (exit code 1).
"""

from __future__ import annotations

import html
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

import moeplan
from moeplan.commands import app

FOLDER = Path(__file__).parent / "reference"
HEAD = "<!-- Written by docs/generate.py. -->\n"


def commands() -> str:
    """Every command with its arguments and options."""
    command = get_command(app)
    context = typer.Context(command, info_name="moeplan")
    text = html.unescape(get_docs_for_click(obj=command, ctx=context, name="moeplan"))
    return f"{HEAD}{text.strip()}\n"


def names() -> str:
    """Every public name of ``import moeplan``."""
    parts = [f"{HEAD}# The Python API\n\nWhat `import moeplan` offers; each loads when it is used."]
    for name in moeplan.__all__:
        value = getattr(moeplan, name)
        parts.append(_entry(name, value, "##"))
        if inspect.isclass(value):
            parts += [
                _entry(f"{name}.{member}", inspect.getattr_static(value, member), "###")
                for member in vars(value)
                if not member.startswith("_") and _speaks(inspect.getattr_static(value, member))
            ]
    return "\n\n".join(parts) + "\n"


def _speaks(member: Any) -> bool:
    function = getattr(member, "__func__", member)
    return (inspect.isfunction(function) or isinstance(member, property)) and bool(
        inspect.getdoc(function)
    )


def _entry(name: str, value: Any, level: str) -> str:
    function = getattr(value, "__func__", value)
    # an error is raised by moeplan, not made by who reads this
    bare = isinstance(value, property) or (inspect.isclass(value) and issubclass(value, Exception))
    signature = "" if bare else str(inspect.signature(function))
    # defaults that are objects of this process have no lasting name
    signature = re.sub(r"<function (\w+)>", r"\1", re.sub(r" at 0x[0-9a-f]+", "", signature))
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)
    signature = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", signature)
    said = inspect.getdoc(value)
    return f"{level} {name}\n```python\n{name}{signature}\n```\n```text\n{said}\n```"


def main() -> int:
    """Write the pages, or compare."""
    pages = {"commands.md": commands(), "python.md": names()}
    stale = [
        name
        for name, text in pages.items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/reference/{name} is stale: python docs/generate.py", file=sys.stderr)
        return bool(stale)
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
