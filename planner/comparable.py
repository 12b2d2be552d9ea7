"""Whether a run did what its plan is for: only then may measured be held against predicted."""

from __future__ import annotations

from planner.documents import Hardware, Plan, Trace
from solvers.counting import counted

__all__ = ["disk_pace", "not_comparable", "pace_words"]

_FEWER_NEW = 0.05
_FEWER_PROMPT = 0.25
"""Prompts are planned at their longest, so somewhat fewer tokens in all are as planned."""


def not_comparable(plan: Plan, trace: Trace, hardware: Hardware | None = None) -> str | None:
    """Why ``trace`` says nothing about ``plan``'s prediction; None where it does.

    The work is as planned with the same requests, new tokens within 5% and prompt tokens within
    25% of what requests of the planned lengths have.

    Parameters
    ----------
    plan, trace
        The trace of a run of that plan.
    hardware
        What the plan was made for, where it is at hand: then the disk must be paced alike, too.
    """
    work, totals = plan.workload, trace.totals
    prompts, new = work.requests * work.prompt_tokens, work.requests * work.new_tokens
    requests = totals.requests if totals.requests is not None else work.requests
    same = (
        requests == work.requests
        and totals.new_tokens >= (1 - _FEWER_NEW) * new
        and totals.prompt_tokens >= (1 - _FEWER_PROMPT) * prompts
    )
    if not same:
        each = max(requests, 1)
        if totals.requests is None:
            ran = (
                f"{totals.prompt_tokens:,} prompt and {counted(totals.new_tokens, 'new token')} in "
                "all"
            )
        else:
            ran = (
                f"{requests:,} of {totals.prompt_tokens / each:.3g}+{totals.new_tokens / each:.3g}"
            )
        return (
            f"planned for {counted(work.requests, 'request')} of "
            f"{work.prompt_tokens:,}+{work.new_tokens:,} tokens, ran {ran}: not comparable"
        )
    if hardware is None:
        return None
    planned = disk_pace(hardware)
    if planned != trace.paced_bytes_per_second:
        ran = pace_words(trace.paced_bytes_per_second)
        return f"planned for a disk {pace_words(planned)}, ran with one {ran}: not comparable"
    return None


def disk_pace(hardware: Hardware) -> int | None:
    """Bytes per second that the disk was slowed down to; None where it ran at its own speed."""
    return next((c.paced_bytes_per_second for c in hardware.channels if c.name == "disk"), None)


def pace_words(bytes_per_second: int | None) -> str:
    """``paced to 1 GB/s``, or ``at its own speed``."""
    if bytes_per_second is None:
        return "at its own speed"
    return f"paced to {bytes_per_second / 1e9:.3g} GB/s"
