"""Documents and blobs, each under the SHA-256 of its bytes: written once, never changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from moeplan.service.errors import StoreError
from moeplan.service.store.database import Database, page
from moeplan.service.store.tables import blobs, documents
from planner.documents import canonical_json

__all__ = ["Documents", "Entry", "Kept"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A document that is to be kept.

    Attributes
    ----------
    kind
        ``hardware``, ``model``, ``costs``, ``routing``, ``profile``, ``plan``, ``placement``,
        ``comparison``, ``explanation`` or ``sweep``.
    name
        What a list shows and is searched by.
    summary
        What a list says of it: plain JSON values.
    body
        Plain JSON values of the document; their canonical text is what is hashed, so that for
        moeplan's own kinds the hash is ``document_hash``.
    """

    kind: str
    name: str
    summary: dict[str, Any]
    body: dict[str, Any]

    @property
    def data(self) -> bytes:
        """The bytes that are kept."""
        return canonical_json(self.body).encode()

    @property
    def hash(self) -> str:
        """SHA-256 of them, 64 hex digits."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class Kept:
    """What a list says of a document."""

    hash: str
    kind: str
    name: str
    summary: dict[str, Any]
    size_bytes: int
    created_at: float


class Documents:
    """Documents and blobs of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, entries: Iterable[Entry], data: Iterable[bytes] = ()) -> list[tuple[str, bool]]:
        """Keep documents, and blobs, in one transaction: all or none.

        Returns
        -------
        list of (str, bool)
            The hash of each document, and whether it is new.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            for blob in data:
                row = {
                    "hash": hashlib.sha256(blob).hexdigest(),
                    "data": blob,
                    "size_bytes": len(blob),
                    "created_at": now,
                }
                self._database.insert_new(connection, blobs, row)
            return self.put_within(connection, entries, now)

    def put_within(
        self, connection: sa.Connection, entries: Iterable[Entry], now: float
    ) -> list[tuple[str, bool]]:
        """As ``put``, in a transaction of somebody else."""
        found = []
        for entry in entries:
            data = entry.data
            digest = hashlib.sha256(data).hexdigest()
            row = {
                "hash": digest,
                "kind": entry.kind,
                "name": entry.name,
                "summary": canonical_json(entry.summary),
                "body": data,
                "size_bytes": len(data),
                "created_at": now,
            }
            found.append((digest, self._database.insert_new(connection, documents, row)))
        return found

    def get(self, kind: str, digest: str) -> bytes | None:
        """Canonical JSON of a document, held against its hash; None where there is none.

        Raises
        ------
        StoreError
            If it is not what was put there.
        """
        statement = sa.select(documents.c.body).where(
            documents.c.hash == digest, documents.c.kind == kind
        )
        return self._checked(f"the {kind} document", digest, statement)

    def blob(self, digest: str) -> bytes | None:
        """As ``get``, of a blob."""
        return self._checked("the blob", digest, sa.select(blobs.c.data).where(_is(blobs, digest)))

    def _checked(self, what: str, digest: str, statement: Any) -> bytes | None:
        with self._database.read() as connection:
            row = connection.execute(statement).one_or_none()
        if row is None:
            return None
        data = bytes(row[0])
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreError(f"{what} {digest} in {self._database.label} is damaged")
        return data

    def kept(self, kind: str, digest: str) -> Kept | None:
        """What a list would say of one document."""
        statement = sa.select(*_LISTED).where(_is(documents, digest), documents.c.kind == kind)
        with self._database.read() as connection:
            row = connection.execute(statement).one_or_none()
        return None if row is None else _kept(row)

    def listed(
        self, kind: str, *, limit: int = 50, after: str | None = None, search: str | None = None
    ) -> list[Kept]:
        """Documents of a kind, the newest first.

        Parameters
        ----------
        limit
            At most so many.
        after
            Only those after the document of this hash, in the list's order.
        search
            Only those whose name holds this text, in upper or lower case.
        """
        statement = sa.select(*_LISTED).where(documents.c.kind == kind)
        if search:
            statement = statement.where(documents.c.name.icontains(search, autoescape=True))
        rows = documents.c
        statement = page(statement, rows.created_at, rows.hash, limit=limit, after=after)
        with self._database.read() as connection:
            return [_kept(row) for row in connection.execute(statement)]

    def counts(self) -> dict[str, int]:
        """Kind -> number of documents."""
        statement = sa.select(documents.c.kind, sa.func.count()).group_by(documents.c.kind)
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(statement)}


_LISTED = (
    documents.c.hash,
    documents.c.kind,
    documents.c.name,
    documents.c.summary,
    documents.c.size_bytes,
    documents.c.created_at,
)


def _is(table: sa.Table, digest: str) -> sa.ColumnElement[bool]:
    found: sa.ColumnElement[bool] = table.c.hash == digest
    return found


def _kept(row: Any) -> Kept:
    return Kept(
        row.hash, row.kind, row.name, json.loads(row.summary), row.size_bytes, row.created_at
    )
