"""Forms: what was typed, read into the same strict requests as the API's, faults as sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Protocol, TypeVar
from urllib.parse import parse_qs

from fastapi import Depends
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from moeplan.options import parse_bandwidth, parse_size
from moeplan.service.problems import Refusal
from planner.documents import printable
from planner.documents.faults import fault_words
from solvers.errors import OptionError

__all__ = [
    "Field",
    "Form",
    "Typed",
    "bandwidth",
    "number",
    "percent",
    "size",
    "text",
    "whole",
    "yes",
]

Typed = dict[str, list[str]]
_MOST_FIELDS = 200
_MOST_TEXT = 1000


class _Asked(Protocol):
    def inputs(self) -> dict[str, Any]: ...


M = TypeVar("M", bound=BaseModel)


async def _typed(request: Request) -> Typed:
    """The fields of a form.

    Raises
    ------
    Refusal
        If the body is none.
    """
    try:
        text = (await request.body()).decode("ascii")
        found = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise Refusal(400, "form", "Not a form", f"the body is no form: {error}", "body") from error
    for name, values in found.items():
        for value in (name, *values):
            if len(value) > _MOST_TEXT or not printable(value):
                said = f"field {name[:40]!r} is too long or holds control characters"
                raise Refusal(400, "form", "Not a form", said, "body")
    return found


Form = Annotated[Typed, Depends(_typed)]


def text(typed: str, label: str) -> str:
    """As it is."""
    return typed


def whole(typed: str, label: str) -> int:
    """A whole number."""
    if re.fullmatch(r"-?[0-9]{1,18}", typed) is None:
        raise OptionError(f"{label} is {typed!r}; write a whole number, like 64")
    return int(typed)


def number(typed: str, label: str) -> float:
    """A number."""
    if re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", typed) is None:
        raise OptionError(f"{label} is {typed!r}; write a number, like 10 or 0.5")
    return float(typed)


def yes(typed: str, label: str) -> bool:
    """Yes or no."""
    if typed not in ("yes", "no"):
        raise OptionError(f"{label} is none of the choices")
    return typed == "yes"


def percent(typed: str, label: str) -> float:
    """A share, written as percent."""
    written = typed.removesuffix("%").strip()
    number(written, label)
    # 0.7 / 100 is a little less than 0.007
    return float(Fraction(written) / 100)


def size(typed: str, label: str) -> int:
    """Bytes."""
    return parse_size(typed, label)


def bandwidth(typed: str, label: str) -> float:
    """Bytes per second."""
    return float(parse_bandwidth(typed, label))


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form.

    Attributes
    ----------
    name
        In the form.
    label
        What it is called, in errors too.
    reads
        From what was typed (and the label) to the request's value.
    initial
        What stands there at first.
    choices
        Values with their labels, where one of them is to be chosen.
    many
        Whether several may be chosen.
    optional
        Whether it may be left empty: then the request does not have it.
    help
        A sentence below it.
    place
        In the request, where that is not the name.
    more
        Whether it is shown only when more is asked for.
    """

    name: str
    label: str
    reads: Callable[[str, str], Any] = text
    initial: tuple[str, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()
    many: bool = False
    optional: bool = False
    help: str = ""
    place: tuple[str, ...] = ()
    more: bool = False

    @property
    def way(self) -> tuple[str, ...]:
        """Where it stands in the request."""
        return self.place or (self.name,)


@dataclass
class Filled:
    """A form as it is shown: fields, what stands in them, and what is wrong with them.

    Attributes
    ----------
    fields
        In order.
    typed
        By name.
    errors
        Name -> sentence; under the empty name what concerns no field.
    """

    fields: Sequence[Field]
    typed: Typed
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def fresh(cls, fields: Sequence[Field], **typed: str | None) -> Filled:
        """With what stands there at first; ``typed`` has what is known already."""
        known = {name: [value] for name, value in typed.items() if value is not None}
        return cls(fields, {one.name: list(one.initial) for one in fields} | known)

    def value(self, name: str) -> str:
        """What stands in a field."""
        return next(iter(self.typed.get(name, ())), "")

    def read(self, model: type[M]) -> M | None:
        """The request that was typed; None, and ``errors``, where it is none."""
        body: dict[str, Any] = {}
        for one in self.fields:
            given = [value.strip() for value in self.typed.get(one.name, ()) if value.strip()]
            if not given:
                if not one.optional:
                    what = "choose at least one" if one.many else "it is needed"
                    self.errors[one.name] = f"{one.label} is empty; {what}."
                continue
            try:
                values = [one.reads(value, one.label) for value in given]
            except OptionError as error:
                self.errors[one.name] = _sentence(str(error))
                continue
            at = body
            for part in one.way[:-1]:
                at = at.setdefault(part, {})
            at[one.way[-1]] = values if one.many else values[0]
        try:
            asked = model.model_validate(body)
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                name = self._named(tuple(map(str, fault["loc"])))
                self.errors.setdefault(name, self._said(name, dict(fault)))
        else:
            return None if self.errors else asked
        return None

    def refuse(self, refusal: Refusal) -> None:
        """Say what a refusal says beside the field that it names."""
        way = tuple(str(refusal.body.get("field", "")).removeprefix("body.").split("."))
        name = self._named(way)
        said = str(refusal)
        for one in self.fields:
            if one.label.lower() != one.name:
                label = one.label[:1].lower() + one.label[1:]
                said = re.sub(rf"\b{re.escape(one.name)}\b", label, said)
        self.errors[name] = _sentence(said)

    def _named(self, way: tuple[str, ...]) -> str:
        return next((one.name for one in self.fields if one.way == way[: len(one.way)]), "")

    def _said(self, name: str, fault: dict[str, Any]) -> str:
        label = next((one.label for one in self.fields if one.name == name), "The form")
        limits = fault.get("ctx", {})
        for key, words in _LIMITS.items():
            if key in limits:
                return f"{label} must be {words} {limits[key]:,}."
        if fault["type"] == "string_pattern_mismatch":
            return f"{label} is none of the choices."
        said = fault_words(fault)
        between = " " if said.startswith(("must ", "is ")) else ": "
        return _sentence(f"{label}{between}{said}")


_LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def _sentence(said: str) -> str:
    said = said[:1].upper() + said[1:]
    return said if said.endswith((".", "!", "?")) else f"{said}."
