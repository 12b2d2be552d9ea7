"""Two labelled kinds of text that every Python installation carries.

*code* is the standard library's source with its docstrings taken out; *prose* is those docstrings
and the language reference behind ``help()`` (:mod:`pydoc_data.topics`). Each byte therefore
belongs to one domain only. Whole documents are held out for evaluation by a hash of their name,
so that the split is the same on every machine and for every Python version, although the text is
not: patch releases edit it.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Literal

__all__ = [
    "DOMAINS",
    "Document",
    "Domain",
    "code_and_prose",
    "find_document",
    "fingerprint",
    "is_held_out",
    "read_documents",
]

Domain = Literal["code", "prose"]
DOMAINS: tuple[Domain, ...] = ("code", "prose")

HELD_OUT_ONE_IN = 14
TOPICS = "topics/"
MIN_DOCUMENT_CHARS = 200

# Tests and their data are left out by many distributions; codecs are tables of numbers; the
# build's configuration differs from machine to machine; pydoc_data is read as topics instead.
SKIPPED_FOLDERS = frozenset(
    {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idle_test",
        "encodings",
        "pydoc_data",
        "__pycache__",
    }
)
SKIPPED_PREFIXES = ("config-", "_sysconfigdata")


@dataclass(frozen=True)
class Document:
    """One held-out unit: a source file without docstrings, its docstrings, or a help topic."""

    domain: Domain
    key: str
    """Path inside the standard library, or ``topics/NAME``."""
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def is_held_out(key: str) -> bool:
    """Whether the document named ``key`` is for evaluation only (one name in 14)."""
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def read_documents() -> list[Document]:
    """All documents of this Python installation, in the order of their keys, code first."""
    code: list[Document] = []
    prose: list[Document] = []
    for key, source in _standard_library():
        try:
            code_text, prose_text = code_and_prose(source)
        except SyntaxError:  # templates and samples of other versions' syntax
            continue
        code.append(Document("code", key, code_text))
        prose.append(Document("prose", key, prose_text))
    for name, text in sorted(topics.topics.items()):
        prose.append(Document("prose", TOPICS + name, _topic(text)))
    return [d for d in (*code, *prose) if len(d.text) >= MIN_DOCUMENT_CHARS]


def find_document(domain: Domain, key: str) -> Document | None:
    """The document of that name, or None where this Python version has none."""
    try:
        if key.startswith(TOPICS):
            return Document("prose", key, _topic(topics.topics[key.removeprefix(TOPICS)]))
        code, prose = code_and_prose(_read(_root() / key))
    except (FileNotFoundError, KeyError):
        return None
    return Document(domain, key, code if domain == "code" else prose)


def fingerprint(documents: list[Document]) -> str:
    """SHA-256 over the keys and texts, to tell which corpus a figure belongs to."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.domain}\0{document.key}\0{document.sha256}\n".encode())
    return digest.hexdigest()


def code_and_prose(source: str) -> tuple[str, str]:
    """Split one module into its code without docstrings and its docstrings without code.

    A docstring that is the whole body of its function or class is replaced by ``pass``; one that
    shares a line with other code stays in the code (and only there).

    Raises
    ------
    SyntaxError
        ``source`` is not a module of the running Python version.
    """
    # As bytes: ast counts columns in bytes, and str.splitlines would also split at form feeds.
    lines = source.encode().splitlines(keepends=True)
    prose: list[str] = []
    spans: list[tuple[ast.stmt, bytes]] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is None:
            continue
        statement = node.body[0]
        alone = len(node.body) == 1 and not isinstance(node, ast.Module)
        if alone or _owns_its_lines(statement, lines):
            spans.append((statement, b"pass" if alone else b""))
            prose.append(_docstring(statement))
    for statement, replacement in sorted(spans, key=lambda span: -span[0].lineno):
        first, last = statement.lineno - 1, _end(statement)[0] - 1
        head = lines[first][: statement.col_offset]
        tail = lines[last][_end(statement)[1] :]
        kept = head + replacement + tail
        lines[first : last + 1] = [kept] if kept.strip() else []
    # ast.walk goes breadth first: the module's docstring, then classes, then methods.
    return b"".join(lines).decode(), "\n\n".join(filter(None, prose)) + "\n"


def _docstring(statement: ast.stmt) -> str:
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        raise TypeError(f"not a docstring: {ast.dump(statement)}")
    return inspect.cleandoc(str(statement.value.value)).strip()


def _end(statement: ast.stmt) -> tuple[int, int]:
    """Line (from 1) and byte column where a parsed statement ends."""
    if statement.end_lineno is None or statement.end_col_offset is None:
        raise ValueError("the statement was not parsed from text")
    return statement.end_lineno, statement.end_col_offset


def _owns_its_lines(statement: ast.stmt, lines: list[bytes]) -> bool:
    end_line, end_column = _end(statement)
    head = lines[statement.lineno - 1][: statement.col_offset]
    tail = lines[end_line - 1][end_column:]
    return not head.strip() and not tail.strip()


def _standard_library() -> Iterator[tuple[str, str]]:
    root = _root()
    for path in sorted(root.rglob("*.py")):
        key = path.relative_to(root)
        if SKIPPED_FOLDERS.intersection(key.parts):
            continue
        if any(part.startswith(SKIPPED_PREFIXES) for part in key.parts):
            continue
        yield key.as_posix(), _read(path)


def _root() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _read(path: Path) -> str:
    with tokenize.open(path) as file:
        return file.read()


def _topic(text: str) -> str:
    return text.strip() + "\n"
