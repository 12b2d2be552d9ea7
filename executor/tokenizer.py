"""Text to tokens and back, with the checkpoint's own tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from planner.checkpoint import Checkpoint
from planner.files import exists, is_dir, is_file, read_regular
from solvers.errors import CheckpointError, DocumentError

__all__ = ["Tokenizer", "end_tokens", "load_tokenizer"]


class Tokenizer(Protocol):
    """Encodes as transformers does by default: special tokens are added, and left out of text."""

    @property
    def longest(self) -> int:
        """Characters of text that a token can stand for, blanks between words included."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""

    def decode(self, ids: list[int]) -> str:
        """Text of token ids."""


_LEAST_LONGEST = 256
"""Some tokenizers give one token for a run of blanks or an unknown word."""


def _longest(vocabulary: Iterable[str]) -> int:
    return max(_LEAST_LONGEST, *map(len, vocabulary))


class _Fast:
    """``tokenizer.json``, read by the tokenizers library alone: transformers adds nothing here."""

    def __init__(self, path: Path) -> None:
        import tokenizers

        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        # a file may ask for padding or truncation; prompts are taken as they are
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.longest = _longest(self._tokenizer.get_vocab())

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


class _Slow:
    """Any other tokenizer that transformers knows."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.longest = _longest(self._tokenizer.get_vocab())

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint.

    Raises
    ------
    CheckpointError
        If there is none that can be read.
    """
    path = folder / "tokenizer.json"
    if is_dir(path):
        raise CheckpointError(f"{path}: is a folder; a tokenizer's file was expected")
    try:
        if is_file(path):
            return _Fast(path)
        if is_file(folder / "tokenizer_config.json"):
            return _Slow(folder)
    except Exception as error:  # both libraries raise bare Exceptions
        line = " ".join(str(error).split())
        what = "" if is_file(path) else "has no tokenizer.json, and "
        raise CheckpointError(f"{folder}: {what}its tokenizer cannot be read: {line}") from error
    raise CheckpointError(f"{folder}: has no tokenizer.json; give prompts as token ids")


def end_tokens(checkpoint: Checkpoint) -> frozenset[int]:
    """Tokens that end a sequence, as transformers' ``generate`` finds them.

    ``generation_config.json`` counts where there is one, else ``config.json``.

    Raises
    ------
    CheckpointError
        If ``generation_config.json`` cannot be read.
    """
    ends = _generation(checkpoint).get("eos_token_id")
    if isinstance(ends, int):
        return frozenset({ends})
    if isinstance(ends, list):
        return frozenset(token for token in ends if isinstance(token, int))
    return frozenset()


def start_tokens(checkpoint: Checkpoint) -> tuple[int, ...]:
    """What the decoder of an encoder-decoder begins with, found likewise.

    Raises
    ------
    CheckpointError
        If neither file says it, or ``generation_config.json`` cannot be read.
    """
    values = _generation(checkpoint)
    for key in ("decoder_start_token_id", "bos_token_id"):
        token = values.get(key)
        if token is not None:
            if isinstance(token, int) and 0 <= token < checkpoint.model.vocab_size:
                return (token,)
            raise CheckpointError(f"{checkpoint.folder}: its {key} {token!r} is no token")
    raise CheckpointError(
        f"{checkpoint.folder}: no decoder_start_token_id in generation_config.json or, where there "
        "is none, config.json"
    )


def forced_token(checkpoint: Checkpoint) -> int | None:
    """What every output of an encoder-decoder has first (of a translator: its language), found
    likewise; None: what the model says.

    Raises
    ------
    CheckpointError
        If it is no token, or ``generation_config.json`` cannot be read.
    """
    token = _generation(checkpoint).get("forced_bos_token_id")
    if token is None or (isinstance(token, int) and 0 <= token < checkpoint.model.vocab_size):
        return token
    raise CheckpointError(f"{checkpoint.folder}: its forced_bos_token_id {token!r} is no token")


def _generation(checkpoint: Checkpoint) -> dict[str, Any]:
    path = checkpoint.folder / "generation_config.json"
    values: Any = checkpoint.config
    if exists(path):
        try:
            values = json.loads(read_regular(path).decode())
        except (DocumentError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return values if isinstance(values, dict) else {}
