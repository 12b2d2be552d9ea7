"""Text as tokens come: whole characters only, and the texts that end a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["TextStream"]

_INCOMPLETE = "\ufffd"


class TextStream:
    """The text of one sequence, piece by piece.

    A character may be made of several tokens, and a tokenizer may drop the blank before the first
    word of what it is given. So a piece is what the text of the last few tokens gains by the new
    ones, and one that ends in half a character waits for the other half.

    Parameters
    ----------
    decode
        Turns ids into text.
    stops
        Texts that end the sequence.

    Attributes
    ----------
    stopped
        Whether one of ``stops`` has occurred.
    """

    def __init__(self, decode: Callable[[list[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=1)
        self._tokens: list[int] = []
        self._known = self._window = ""
        self._told = 0
        self._tail = ""
        self._pieces: list[str] = []
        self.stopped = False

    def push(self, token: int) -> None:
        """The sequence's next token."""
        self._tokens.append(token)
        self._window = self._decode(self._tokens)
        fresh = self._window[len(self._known) :]
        self.stopped |= any(stop in self._tail + fresh for stop in self._stops)
        if fresh and not fresh.endswith(_INCOMPLETE):
            self._tell(fresh)

    def _tell(self, fresh: str) -> None:
        self._pieces.append(fresh)
        self._tail = (self._tail + fresh)[-self._longest :]
        # what was told last stays in the window: the next piece is what the text gains
        self._tokens = self._tokens[self._told :]
        self._told = len(self._tokens)
        self._known = self._window = self._decode(self._tokens)

    def take(self) -> str:
        """The text since the last call, as far as its characters are whole."""
        piece = "".join(self._pieces)
        self._pieces.clear()
        return piece

    def finish(self) -> str:
        """As ``take``, at the end: with half a character where there is one."""
        fresh = self._window[len(self._known) :]
        self._window = self._known
        return self.take() + fresh
