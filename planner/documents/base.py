"""What all documents share: validation at the edge and hashes.

A document is a frozen dataclass whose class attributes ``kind`` and ``version`` go into the file
as its first two keys. pydantic validates on reading; inside the program the values are plain.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WrapSerializer,
)

from planner.documents.faults import fault_words
from planner.documents.writing import write_atomic
from planner.files import object_once, read_regular
from solvers.errors import DocumentError

__all__ = [
    "SEAL",
    "STRICT",
    "Added",
    "Bytes",
    "Count",
    "Document",
    "Figure",
    "Fraction",
    "Hash",
    "Keyed",
    "Name",
    "Nanoseconds",
    "Positive",
    "Source",
    "Tokens",
    "Units",
    "canonical_json",
    "document_hash",
    "dump_document",
    "load_document",
    "load_with_seal",
    "parse_document",
    "printable",
    "to_json",
    "write_document",
]

Name = Annotated[str, Field(max_length=255)]
"""What a list shows; as long as a file's name may be."""

T = TypeVar("T")
Added = Annotated[T | None, Field(exclude_if=lambda value: value is None)]
"""A field that came later: where it is None its key is left out, so that hashes of documents from
before stay what they were."""

K = TypeVar("K", bound=str)
V = TypeVar("V")


def _by_key(values: Any, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
    return dict(sorted(written(values).items()))


Keyed = Annotated[dict[K, V], WrapSerializer(_by_key)]
"""Values by name, written in the names' order: equal documents are equal texts, wherever they come
from."""

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

_MOST = 1 << 62
"""No number of bytes, nanoseconds or parameters is larger, and sums of two still fit 64 bits."""

Bytes = Annotated[int, Field(ge=0, le=_MOST)]
Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Nanoseconds = Annotated[int, Field(ge=0, le=_MOST)]
Units = Annotated[int, Field(ge=0, le=1 << 20)]
"""Things that a plan counts out one by one: slots, tiles, experts, layers."""
Tokens = Annotated[int, Field(ge=1, le=1 << 27)]
"""Tokens of one sequence: ten times the longest context there is."""
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Source = Literal["measured", "fitted", "spec", "synthetic", "paced"]


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A number that says where it comes from.

    Attributes
    ----------
    value
        The number, in the unit that the field's name gives (the median, where it was measured).
    source
        ``measured`` here, ``fitted`` to measurements, from a ``spec`` sheet, ``synthetic``, or
        ``paced`` (measured on a link that was slowed on purpose).
    spread
        Half the distance between the quartiles, in the same unit; None where there is one sample.
    samples
        How many samples it comes from.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    value: float
    source: Source
    spread: float | None = None
    samples: Count = 0

    def __post_init__(self) -> None:
        if self.spread is not None and self.spread < 0:
            raise ValueError("spread is negative")


@dataclasses.dataclass(frozen=True)
class Document:
    """Base of every document: see the module.

    A ``sealed`` one carries its own hash in its file (``content_hash``), so that an edit by hand
    shows. It is no secret: whoever forges a plan can forge its seal, so plans are also checked.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    kind: ClassVar[str]
    version: ClassVar[int] = 1
    sealed: ClassVar[bool] = False


D = TypeVar("D", bound=Document)


_MOST_BYTES = 256 << 20
"""No document is larger: a device or a wrong file is not read without end."""

SEAL = "content_hash"
"""The key of a sealed document's own hash in its file."""

_ADAPTERS: dict[str, TypeAdapter[Any]] = {}


def _adapter(cls: type[Document]) -> TypeAdapter[Any]:
    if cls.kind not in _ADAPTERS:
        _ADAPTERS[cls.kind] = TypeAdapter(cls)
    return _ADAPTERS[cls.kind]


def to_json(document: Document) -> dict[str, Any]:
    """Plain JSON values of ``document``, with ``kind`` and ``version`` first."""
    body: dict[str, Any] = _adapter(type(document)).dump_python(document, mode="json")
    return {"kind": document.kind, "version": document.version, **body}


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def document_hash(document: Document) -> str:
    """SHA-256 (64 hex digits) of the canonical JSON of ``document``."""
    return _sha256(to_json(document))


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def parse_document(cls: type[D], value: object, where: str) -> D:
    """Validate plain JSON values.

    Raises
    ------
    DocumentError
        With the first fault and the place it stands at.
    """
    if not isinstance(value, dict):
        raise DocumentError(f"{where}: not a JSON object; a {cls.kind} document was expected")
    body = dict(value)
    if "kind" not in body:
        raise DocumentError(f"{where}: has no 'kind'; is it a moeplan document?")
    kind, version = body.pop("kind"), body.pop("version", None)
    if kind != cls.kind:
        raise DocumentError(f"{where}: kind is {kind!r}; a {cls.kind!r} document was expected")
    if version != cls.version or isinstance(version, bool):
        raise DocumentError(
            f"{where}: {cls.kind} version {version!r} is unknown; this moeplan reads version "
            f"{cls.version}: make the document again with this moeplan"
        )
    try:
        for way, text in _texts(body, ()):
            if not printable(text):
                at = ".".join(map(str, way)) or "top level"
                raise DocumentError(f"{where}: {at}: {text!r} holds control characters")
        document: D = _adapter(cls).validate_json(json.dumps(body), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "top level"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        text = f"{place}: {fault_words(first)}{more}"
        raise DocumentError(f"{where}: {' '.join(text.split())}") from error
    except RecursionError as error:
        raise DocumentError(f"{where}: nested too deeply for a {cls.kind} document") from error
    return document


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, separators of lines, turns of direction, half surrogate pairs: what could
make a terminal show something else than what the document says."""


def printable(text: str) -> bool:
    """Whether ``text`` may be shown on a terminal as it is; no document holds any other."""
    return _UNPRINTABLE.search(text) is None


def _texts(value: Any, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """All texts of a JSON value, keys too, with the way to each."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield place, key
            yield from _texts(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*place, index))


def load_document(cls: type[D], path: Path) -> D:
    """Read and validate one document.

    Raises
    ------
    DocumentError
        If the file is missing, unreadable, not JSON, not a valid document of this kind, or sealed
        and edited since.
    """
    document, fault = load_with_seal(cls, path)
    if fault is not None:
        raise DocumentError(f"{path}: {fault}")
    return document


def load_with_seal(cls: type[D], path: Path) -> tuple[D, str | None]:
    """As ``load_document``, with what is wrong with the seal instead of a refusal; None where it
    holds or there is none."""
    value = _load_json(cls, path)
    seal = value.pop(SEAL, None) if cls.sealed and isinstance(value, dict) else None
    document = parse_document(cls, value, str(path))
    # as it is written, so that a key that later versions add is no edit; or as it is read
    if not cls.sealed or seal in (_sha256(value), document_hash(document)):
        return document, None
    if seal is None:
        return document, f"has no {SEAL}, without which edits do not show; make it again"
    again = "plan again" if cls.kind == "plan" else "run again"
    return document, f"was edited by hand after it was made: {again}"


def _load_json(cls: type[Document], path: Path) -> Any:
    data = read_regular(path, f"{cls.kind} document", _MOST_BYTES)
    try:
        text = data.decode()
    except ValueError as error:
        raise DocumentError(f"{path}: cannot be read: {error}") from error
    try:
        return json.loads(text, object_pairs_hook=object_once)
    except (ValueError, RecursionError) as error:  # also integers of over 4,300 digits
        raise DocumentError(f"{path}: not valid JSON: {error}") from error


def dump_document(document: Document) -> str:
    """The text that goes into a file: indented JSON, one value to a line where short; a sealed
    document with its seal."""
    value = to_json(document)
    if document.sealed:
        value[SEAL] = document_hash(document)
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def write_document(document: Document, path: Path) -> None:
    """Write ``document`` to ``path`` atomically (temporary file, fsync, rename)."""
    write_atomic(path, dump_document(document).encode())
