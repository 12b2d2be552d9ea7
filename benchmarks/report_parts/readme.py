"""Whether the figures that the README tells stand in the report."""

from __future__ import annotations

import re

__all__ = ["figures_of", "missing_figures"]

_SPEED = re.compile(
    r"tokens/s|[GM]B/s|\btimes as\b|\bfaster\b|\d\s?%|\d+(\.\d+)?x\b|\d m?s\b|"
    r"\b(predicted|promised|measured|process takes|error|gap|tau)\b"
)
"""What makes a sentence one of performance."""
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?=x?\b)")


def figures_of(readme: str) -> dict[str, list[str]]:
    """Sentence of performance -> its numbers; code and links' targets apart."""
    text = re.sub(r"```.*?```", "", readme, flags=re.S)
    text = re.sub(r"`[^`\n]*`", "", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    found = {}
    for paragraph in re.split(r"\n\s*\n|\n(?=[-#|])", text):
        for sentence in re.split(r"(?<=[.?!])\s+(?=\S)", " ".join(paragraph.split())):
            numbers = _NUMBER.findall(sentence)
            if numbers and _SPEED.search(sentence):
                found[sentence] = numbers
    return found


def missing_figures(readme: str, report: str) -> dict[str, list[str]]:
    """Sentence -> numbers that its best section of the report lacks.

    All numbers of a sentence have to stand in one section: somewhere among some thousand others
    every small number can be found.
    """
    sections = [set(_NUMBER.findall(one)) for one in re.split(r"^## ", report, flags=re.M)]
    found = {}
    for sentence, numbers in figures_of(readme).items():
        lacking = min(([one for one in numbers if one not in there] for there in sections), key=len)
        if lacking:
            found[sentence] = lacking
    return found
