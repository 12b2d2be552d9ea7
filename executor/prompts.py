"""Prompts held against the workload of a plan, before any weight is loaded for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from executor.tokenizer import Tokenizer
from planner.documents import Workload
from solvers.errors import OptionError

__all__ = ["Prompts", "check_limit", "encode"]

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
            longest = tokenizer().longest
            if len(prompt) > workload.prompt_tokens * longest:
                raise OptionError(
                    f"prompt {number} has {len(prompt):,} characters, more than "
                    f"{workload.prompt_tokens:,} tokens (of at most {longest} characters) hold: "
                    "shorten it, or plan again with more --prompt-tokens"
                )
            tokens = tokenizer().encode(prompt)
        else:
            tokens = [int(token) for token in prompt]
        if not tokens:
            raise OptionError(f"prompt {number} is empty; a prompt has one token at least")
        if len(tokens) > workload.prompt_tokens:
            raise OptionError(
                f"prompt {number} has {len(tokens)} tokens; the plan is for at most "
                f"{workload.prompt_tokens}: plan again with --prompt-tokens {len(tokens)}"
            )
        if not all(0 <= token < vocab_size for token in tokens):
            raise OptionError(f"prompt {number} has a token outside the vocabulary of {vocab_size}")
        ids.append(tokens)
    return ids
