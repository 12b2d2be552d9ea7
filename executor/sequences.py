"""The sequences of one group, as passes make them grow."""

from __future__ import annotations

from collections.abc import Sequence

from executor.operations import Operations
from solvers.errors import RunError

__all__ = ["Sequences"]


class Sequences:
    """Some prompts that run together: what the next pass is fed, and what has come out.

    Parameters
    ----------
    prompts
        Token ids of all prompts of a run.
    members
        Which of them run together.
    results
        New tokens of all prompts, which grow here.
    end_tokens
        Tokens that end a sequence; such a token is still part of the output.
    first, step
        Prompt i of these is prompt ``first + i * step`` of the caller's, from 0: for messages.

    Attributes
    ----------
    past
        Tokens of each member before the next pass.
    """

    def __init__(
        self,
        prompts: Sequence[list[int]],
        members: range,
        results: list[list[int]],
        end_tokens: frozenset[int],
        *,
        first: int = 0,
        step: int = 1,
    ) -> None:
        self._first, self._step = first, step
        self.members = members
        self._results, self._end_tokens = results, end_tokens
        self._fresh = [prompts[index] for index in members]
        self.past = [0] * len(members)

    @property
    def counts(self) -> list[int]:
        """Tokens of each member in the next pass; 0 where it has ended."""
        return [len(tokens) for tokens in self._fresh]

    @property
    def tokens(self) -> list[int]:
        """All tokens of the next pass, member by member."""
        return [token for some in self._fresh for token in some]

    def grow(self, alive: list[int], following: list[int]) -> None:
        """After a pass: the next token of each member that was in it."""
        self.past = [before + count for before, count in zip(self.past, self.counts, strict=True)]
        self._fresh = [[] for _ in self.members]
        for index, token in zip(alive, following, strict=True):
            self._results[self.members[index]].append(token)
            if token not in self._end_tokens:
                self._fresh[index] = [token]

    def check_finite(self, operations: Operations, alive: list[int], pass_index: int) -> None:
        """Refuse to choose tokens by logits that are no numbers.

        Raises
        ------
        RunError
            Naming the pass and the first prompt.
        """
        broken = operations.not_finite()
        if broken:
            prompt = self._first + self.members[alive[broken[0]]] * self._step
            raise RunError(
                f"pass {pass_index}: the logits of prompt {prompt + 1} are NaN or infinite, so no "
                "token can be chosen: the checkpoint's weights are damaged, or too large for its "
                f"type ({len(broken)} of {len(alive)} sequences)"
            )
