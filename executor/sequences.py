"""The sequences of one group, as passes make them grow, and those that wait for a place in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from executor.operations import Operations
from solvers.counting import counted
from solvers.errors import RunError

__all__ = ["Grown", "Sequences"]


class Grown(NamedTuple):
    """A new token of a prompt, and whether its sequence ends with it."""

    member: int
    token: int
    ended: bool


class Sequences:
    """Some prompts that run together: what the next pass is fed, and what has come out.

    The place of a sequence that has ended is taken by the next one that waits. Where all of a group
    end at once, the next ones are a new group.

    Parameters
    ----------
    prompts
        Token ids of all prompts of a run.
    members
        Which of them run together.
    results
        New tokens of all prompts, which grow here.
    ends
        Whether a prompt's sequence ends with the token that it is given, the last of its results.
    waiting
        Which prompts come next, in this order.
    first, step
        Prompt i of these is prompt ``first + i * step`` of the caller's, from 0: for messages.

    Attributes
    ----------
    members
        The prompt at each place.
    past
        Tokens of each member before the next pass.
    """

    def __init__(
        self,
        prompts: Sequence[list[int]],
        members: Iterable[int],
        results: list[list[int]],
        ends: Callable[[int, int], bool],
        *,
        waiting: Iterable[int] = (),
        first: int = 0,
        step: int = 1,
    ) -> None:
        self._first, self._step = first, step
        self._prompts, self._results, self._ends = prompts, results, ends
        self._waiting = deque(waiting)
        self._begin(list(members))

    def _begin(self, members: list[int]) -> None:
        self.members = members
        self._fresh = [self._prompts[member] for member in members]
        self.past = [0] * len(members)

    @property
    def counts(self) -> list[int]:
        """Tokens of each member in the next pass; 0 where it has ended."""
        return [len(tokens) for tokens in self._fresh]

    @property
    def tokens(self) -> list[int]:
        """All tokens of the next pass, member by member."""
        return [token for some in self._fresh for token in some]

    def grow(self, alive: list[int], following: list[int]) -> list[Grown]:
        """After a pass: the next token of each member that was in it.

        Returns
        -------
        list of Grown
            In the order of ``alive``.
        """
        self.past = [before + count for before, count in zip(self.past, self.counts, strict=True)]
        self._fresh = [[] for _ in self.members]
        grown = []
        for place, token in zip(alive, following, strict=True):
            member = self.members[place]
            self._results[member].append(token)
            ended = self._ends(member, token)
            grown.append(Grown(member, token, ended))
            if not ended:
                self._fresh[place] = [token]
        self._refill()
        return grown

    def _refill(self) -> None:
        places = len(self.members)
        if not any(self._fresh):
            self._begin([self._waiting.popleft() for _ in range(min(places, len(self._waiting)))])
            return
        # not in place: who looks at the last pass still has its lists
        self.members, self.past = list(self.members), list(self.past)
        for place in range(places):
            if not self._fresh[place] and self._waiting:
                member = self._waiting.popleft()
                self.members[place], self.past[place] = member, 0
                self._fresh[place] = self._prompts[member]

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
                f"type ({len(broken)} of {counted(len(alive), 'sequence')})"
            )
