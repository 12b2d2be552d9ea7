"""API tokens: made once, shown once, kept as hashes."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

import sqlalchemy as sa

from moeplan.service.store.database import Database
from moeplan.service.store.tables import tokens

__all__ = ["Token", "Tokens"]

_PREFIX = "moeplan"


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token; its secret is not."""

    id: str
    name: str
    created_at: float
    revoked_at: float | None


class Tokens:
    """Tokens of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str) -> tuple[Token, str]:
        """A new token, and its text ``moeplan_ID_SECRET``, which is told this once.

        The secret has 256 random bits, so that a plain SHA-256 of it cannot be searched.
        """
        identity, secret = secrets.token_hex(8), secrets.token_hex(32)
        with self._database.write() as connection:
            token = Token(identity, name, self._database.now(connection), None)
            row = {
                "id": identity,
                "name": name,
                "secret_hash": _hashed(secret),
                "created_at": token.created_at,
            }
            connection.execute(sa.insert(tokens).values(**row))
        return token, f"{_PREFIX}_{identity}_{secret}"

    def valid(self, text: str) -> bool:
        """Whether ``text`` is a token that was made here and not revoked."""
        prefix, _, rest = text.partition("_")
        identity, _, secret = rest.partition("_")
        if prefix != _PREFIX or not text.isascii():
            return False
        statement = sa.select(tokens.c.secret_hash).where(
            tokens.c.id == identity, tokens.c.revoked_at.is_(None)
        )
        with self._database.read() as connection:
            kept = connection.execute(statement).scalar_one_or_none()
        return hmac.compare_digest(kept or "", _hashed(secret)) and kept is not None

    def revoke(self, identity: str) -> bool:
        """Revoke a token; False where there is none of this id that was not revoked before."""
        statement = sa.update(tokens).where(tokens.c.id == identity, tokens.c.revoked_at.is_(None))
        with self._database.write() as connection:
            now = self._database.now(connection)
            return self._database.changed(connection, statement.values(revoked_at=now))

    def listed(self) -> list[Token]:
        """All tokens, the oldest first."""
        statement = sa.select(
            tokens.c.id, tokens.c.name, tokens.c.created_at, tokens.c.revoked_at
        ).order_by(tokens.c.created_at, tokens.c.id)
        with self._database.read() as connection:
            return [Token(*row) for row in connection.execute(statement)]

    def any_valid(self) -> bool:
        """Whether anybody could come in."""
        return any(token.revoked_at is None for token in self.listed())


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
