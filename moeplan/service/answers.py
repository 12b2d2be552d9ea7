"""Answers that were given before, kept in memory for as long as they would be the same.

Pollers ask for the same few things again and again, while solvers want the processors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from moeplan.service.store import Store

__all__ = ["Answers"]

_LARGEST_BYTES = 4 << 20
"""A larger answer is made anew each time."""

_EACH_BYTES = 4096
"""What one answer takes beside its address and its body: its headers, and Python's objects."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """One answer; ``version`` of the store that it was made from, None where it never changes."""

    response: Response
    version: int | None
    bytes: int


class Answers:
    """Answers of one server; used from its event loop alone.

    Parameters
    ----------
    store
        Says when something has changed in it.
    most_bytes
        Of all answers that are kept, with their addresses and what holds them together; those that
        were not asked for the longest go first.
    """

    def __init__(self, store: Store, most_bytes: int = 64 << 20) -> None:
        self._store = store
        self._most = most_bytes
        self._kept: OrderedDict[str, _Answer] = OrderedDict()
        self._bytes = 0

    async def of(self, request: Request, make: Callable[[], Awaitable[Response]]) -> Response:
        """The answer to a GET, or that it is as the asker has it (304).

        Parameters
        ----------
        request
            Its address is what counts.
        make
            Makes the answer where none is kept that still holds.
        """
        address = f"{request.url.path}?{request.url.query}"
        # before the answer is made: what changes meanwhile makes it stale
        version = self._store.database.version()
        answer = self._kept.get(address)
        if answer is None or answer.version not in (None, version):
            response = await make()
            self._keep(address, response, version)
        else:
            response = answer.response
            self._kept.move_to_end(address)
        tag = response.headers.get("etag")
        if tag is not None and tag in request.headers.get("if-none-match", ""):
            same = {"ETag": tag, "Cache-Control": response.headers["cache-control"]}
            return Response(status_code=304, headers=same)
        return response

    def _keep(self, address: str, response: Response, version: int | None) -> None:
        lasting = "immutable" in response.headers.get("cache-control", "")
        # a stream has no body yet
        size = len(getattr(response, "body", b""))
        if response.status_code != 200 or not 0 < size <= _LARGEST_BYTES:
            return
        if version is None and not lasting:
            return
        self._drop(address)
        taken = _EACH_BYTES + len(address) + size
        self._kept[address] = _Answer(response, None if lasting else version, taken)
        self._bytes += taken
        while self._bytes > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, address: str) -> None:
        answer = self._kept.pop(address, None)
        if answer is not None:
            self._bytes -= answer.bytes
