"""Prompts held against what is to run them, before any weight is loaded for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from executor.tokenizer import Tokenizer
from planner.documents import Workload
from solvers.errors import CheckpointError, OptionError

__all__ = ["Prompts", "check_limit", "check_tokens", "decode", "encode", "encode_text"]

Prompts = Sequence[str] | Sequence[Sequence[int]]


def check_limit(workload: Workload, max_new_tokens: int | None) -> int:
    """New tokens for each prompt; the workload's where None.

    Raises
    ------
    OptionError
        If they are more than the workload has.
    """
    limit = workload.new_tokens if max_new_tokens is None else max_new_tokens
    if not 1 <= limit <= workload.new_tokens:
        raise OptionError(
            f"{limit} new tokens are asked for; the plan allows 1 to {workload.new_tokens}: "
            f"plan again with --new-tokens {max(limit, 1)}"
        )
    return limit


def encode(
    prompts: Prompts, workload: Workload, vocab_size: int, tokenizer: Callable[[], Tokenizer]
) -> list[list[int]]:
    """Token ids of each prompt.

    Parameters
    ----------
    prompts
        Texts, or token ids.
    workload
        How many there may be, and how long.
    vocab_size
        Of the model.
    tokenizer
        Called where a prompt is a text.

    Raises
    ------
    OptionError
        If prompts are too many or too long, or hold a token that the model does not have. A text
        with more characters than its tokens could stand for is refused before it is tokenized.
    """
    if not 1 <= len(prompts) <= workload.requests:
        raise OptionError(
            f"{len(prompts)} prompts are given; the plan is for 1 to {workload.requests}: "
            f"plan again with --requests {max(len(prompts), 1)}"
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
                "shorten it, or plan again with more --prompt-tokens",
            )
        else:
            tokens = [int(token) for token in prompt]
        check_tokens(number, tokens, vocab_size)
        if len(tokens) > workload.prompt_tokens:
            raise OptionError(
                f"prompt {number} has {len(tokens)} tokens; the plan is for at most "
                f"{workload.prompt_tokens}: plan again with --prompt-tokens {len(tokens)}"
            )
        ids.append(tokens)
    return ids


def encode_text(
    number: int, text: str, most_tokens: int, tokenizer: Tokenizer, remedy: str
) -> list[int]:
    """Token ids of prompt ``number``.

    Raises
    ------
    OptionError
        If it has more characters than ``most_tokens`` tokens could stand for, which is seen before
        it is tokenized; ``remedy`` ends the message.
    """
    if len(text) > most_tokens * tokenizer.longest:
        raise OptionError(
            f"prompt {number} has {len(text):,} characters, more than {most_tokens:,} tokens (of "
            f"at most {tokenizer.longest} characters) hold: {remedy}"
        )
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
    if not all(0 <= token < vocab_size for token in tokens):
        raise OptionError(f"prompt {number} has a token outside the vocabulary of {vocab_size}")


def decode(ids: Sequence[int], tokenizer: Callable[[], Tokenizer]) -> str:
    """Text of token ids; none where they went in without a tokenizer."""
    try:
        return tokenizer().decode(list(ids))
    except CheckpointError:
        return ""
