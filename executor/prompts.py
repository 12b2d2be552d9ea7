"""Prompts held against what is to run them, before any weight is loaded for them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence, Set, Sized

from executor.tokenizer import Tokenizer
from planner.documents import ModelSpec, Workload
from solvers.counting import counted
from solvers.errors import CheckpointError, OptionError

__all__ = [
    "Prompts",
    "check_limit",
    "check_prompts",
    "check_stop",
    "check_tokens",
    "decode",
    "encode",
    "encode_text",
]

Prompts = Sequence[str] | Sequence[Sequence[int]]

_WANTED = "give a list of texts or of lists of token ids"


def check_prompts(prompts: object) -> int:
    """How many prompts there are.

    Raises
    ------
    OptionError
        If they are no list.
    """
    if isinstance(prompts, str):
        raise OptionError("prompts is one text; give a list of prompts")
    items = _items(prompts)
    if items is None:
        raise OptionError(f"prompts is {_said(prompts)}: {_WANTED}")
    return len(items)


def _items(value: object) -> list[object] | None:
    """What a list, a tuple or an array holds; None of what holds nothing, or in no order, or once
    only."""
    return None if isinstance(value, Set) or not isinstance(value, Sized) else _each(value)


def _each(value: object) -> list[object] | None:
    """Likewise, in whatever order or once only; bytes are no numbers, but a text not decoded."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        return None
    try:
        each = iter(value)  # type: ignore[call-overload]
    except TypeError:  # as of an array of no dimension
        return None
    return list(each)


def check_limit(
    workload: Workload, max_new_tokens: int | Sequence[int] | None, prompts: int | None = None
) -> int | list[int]:
    """New tokens for each prompt; the workload's where None.

    Raises
    ------
    OptionError
        If they are none or more than the workload has, no whole numbers, or given one by one and
        not as many as ``prompts``.
    """
    limit = workload.new_tokens if max_new_tokens is None else max_new_tokens
    given = _items(limit)
    counts = [limit] if given is None else given
    limits = [_whole(one, "a number of new tokens") for one in counts]
    if given is not None and prompts is not None and len(limits) != prompts:
        raise OptionError(
            f"given: {counted(len(limits), 'number')} of new tokens for "
            f"{counted(prompts, 'prompt')}"
        )
    for one in limits:
        if not 1 <= one <= workload.new_tokens:
            remedy = f"plan again with --new-tokens {one}" if one > 0 else "ask for one at least"
            raise OptionError(
                f"{counted(one, 'new token')} are asked for; the plan allows 1 to "
                f"{workload.new_tokens}: {remedy}"
            )
    return limits[0] if given is None else limits


def _whole(value: object, what: str) -> int:
    """An integer of any library; 1.5 is not made 1, and a text no number."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise OptionError(f"{_said(value)} is given as {what}: give a whole number") from None


def encode(
    prompts: Prompts, workload: Workload, model: ModelSpec, tokenizer: Callable[[], Tokenizer]
) -> list[list[int]]:
    """Token ids of each prompt.

    Parameters
    ----------
    prompts
        Texts, or token ids.
    workload
        How many there may be, and how long.
    model
        Whose vocabulary and context they must fit.
    tokenizer
        Called where a prompt is a text.

    Raises
    ------
    OptionError
        If prompts are none, too many or too long, neither texts nor token ids, or hold a token that
        the model does not have. A text with more characters than its tokens could stand for is
        refused before it is tokenized.
    """
    count = check_prompts(prompts)
    if not 1 <= count <= workload.requests:
        remedy = f"plan again with --requests {count}" if count else "give one at least"
        raise OptionError(
            f"{counted(count, 'prompt')} are given; the plan is for 1 to "
            f"{workload.requests}: {remedy}"
        )
    ids: list[list[int]] = []
    given: Sequence[str | Sequence[int]] = prompts
    for number, prompt in enumerate(given, 1):
        if isinstance(prompt, str):
            tokens = encode_text(
                number,
                prompt,
                workload.prompt_tokens,
                tokenizer(),
                f"shorten it ({_most(workload, model)})",
            )
        elif (items := _items(prompt)) is not None:
            tokens = [_whole(token, f"a token id of prompt {number}") for token in items]
        else:
            raise OptionError(f"prompt {number} is {_said(prompt)}: {_WANTED}")
        check_tokens(number, tokens, model.vocab_size)
        if len(tokens) > workload.prompt_tokens:
            fits = len(tokens) + workload.new_tokens <= model.max_context
            remedy = f"plan again with --prompt-tokens {len(tokens)}" if fits else "shorten it"
            raise OptionError(
                f"prompt {number} has {counted(len(tokens), 'token')}; {_most(workload, model)}: "
                f"{remedy}"
            )
        ids.append(tokens)
    return ids


def _most(workload: Workload, model: ModelSpec) -> str:
    room = model.max_context - workload.new_tokens
    return (
        f"the plan is for at most {workload.prompt_tokens}, and the model's context of "
        f"{model.max_context} has room for {room} before {workload.new_tokens} new ones"
    )


def encode_text(
    number: int, text: str, most_tokens: int, tokenizer: Tokenizer, remedy: str
) -> list[int]:
    """Token ids of prompt ``number``.

    Raises
    ------
    OptionError
        If it is no text that a file could hold, or has more characters than ``most_tokens`` tokens
        could stand for, which is seen before it is tokenized; ``remedy`` ends the message.
    """
    if len(text) > most_tokens * tokenizer.longest:
        raise OptionError(
            f"prompt {number} has {counted(len(text), 'character')}, more than "
            f"{counted(most_tokens, 'token')} (of at most "
            f"{counted(tokenizer.longest, 'character')}) hold: {remedy}"
        )
    if not _is_utf8(text):
        raise OptionError(f"prompt {number} holds half a surrogate pair, which is no character")
    return tokenizer.encode(text)


def check_tokens(number: int, tokens: Sequence[int], vocab_size: int) -> None:
    """Refuse a prompt that no model of this vocabulary can take.

    Raises
    ------
    OptionError
        If it is empty, or holds a token that the model does not have.
    """
    if not tokens:
        raise OptionError(f"prompt {number} is empty; a prompt has one token at least")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise OptionError(
                f"prompt {number} has token {token}, which is outside the vocabulary: "
                f"0 to {vocab_size - 1}"
            )


def check_stop(
    stop: Sequence[int | str], vocab_size: int, tokenizer: Callable[[], Tokenizer]
) -> tuple[frozenset[int], tuple[str, ...]]:
    """What ends a sequence beside the model's own end tokens: token ids, and texts.

    Raises
    ------
    OptionError
        If one could never occur.
    CheckpointError
        If there are texts and no tokenizer.
    """
    if isinstance(stop, str):
        raise OptionError("stop is one text; give a list of texts and token ids")
    given = _each(stop)
    if given is None:
        raise OptionError(f"stop is {_said(stop)}: give a list of texts and token ids")
    texts = tuple(one for one in given if isinstance(one, str))
    tokens = frozenset(_whole(one, "a stop token") for one in given if not isinstance(one, str))
    if "" in texts:
        raise OptionError("an empty text cannot stop a sequence")
    for text in texts:
        if not _is_utf8(text):
            raise OptionError(f"stop text {text!r} is not UTF-8, which every output is")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise OptionError(
                f"stop token {token} is outside the vocabulary: 0 to {vocab_size - 1}"
            )
    if texts:
        tokenizer()
    return tokens, texts


def _said(value: object) -> str:
    """On one line, which an array's rows are not."""
    return " ".join(repr(value).split())[:60]


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def decode(ids: Sequence[int], tokenizer: Callable[[], Tokenizer]) -> str:
    """Text of token ids; none where they went in without a tokenizer."""
    try:
        return tokenizer().decode(list(ids))
    except CheckpointError:
        return ""
