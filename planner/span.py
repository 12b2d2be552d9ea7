"""Tokens of a sequence that attention sees: all, or its first and last where that may be asked.

Positions stay those of the whole sequence, for rotary embeddings, too. Keys and values of tokens
that no later token sees are not kept.
"""

from __future__ import annotations

from planner.documents import ModelSpec, Workload
from solvers.counting import counted
from solvers.errors import OptionError, UnsupportedError

__all__ = ["check_span", "context_tokens", "kept_tokens", "seen_tokens"]


def context_tokens(workload: Workload) -> int:
    """Tokens of one sequence at its longest."""
    return workload.prompt_tokens + workload.new_tokens


def kept_tokens(workload: Workload) -> int:
    """KV positions that one sequence needs at its longest: all, or its first tokens and as many of
    the last as attention sees."""
    context = context_tokens(workload)
    if workload.attention_window is None:
        return context
    return min((workload.attention_sinks or 0) + workload.attention_window, context)


def seen_tokens(workload: Workload, context: int) -> int:
    """Tokens that attention looks at where a sequence has ``context`` of them."""
    return min(context, kept_tokens(workload))


def check_span(model: ModelSpec, workload: Workload) -> None:
    """Refuse a window where it cannot be had, or hides nothing.

    Raises
    ------
    UnsupportedError
        If the model has windows of its own, or layers that keep no keys and values.
    OptionError
        If no sequence is longer than what is seen.
    """
    window, sinks = workload.attention_window, workload.attention_sinks or 0
    if window is None:
        return
    if model.encoder:
        raise UnsupportedError(
            f"{model.name} ({model.family}): an encoder and a decoder have contexts of their own, "
            "with which --attention-window does not go together: leave it out"
        )
    for layer in model.layers:
        why = ""
        if layer.window is not None:
            why = f"has a window of {counted(layer.window, 'token')} of its own"
        elif layer.state_bytes:
            why = "keeps a state instead of keys and values"
        if why:
            raise UnsupportedError(
                f"{model.name} ({model.family}): layer {layer.index} {why}, with which "
                "--attention-window does not go together: leave it out"
            )
    # the last new token is never looked at: nothing comes after it
    context = context_tokens(workload) - 1
    if kept_tokens(workload) >= context:
        raise OptionError(
            f"an attention window of {counted(window, 'token')} and {counted(sinks, 'sink')} has "
            f"no effect: no token has more than {counted(context, 'token')} to look at; give a "
            "smaller window, or leave it out"
        )
