"""Connections and transactions, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from moeplan.service.errors import StoreError, StoreFullError
from planner.files import exists
from solvers.errors import OptionError

__all__ = ["Database", "page"]

_BUSY_MS = 20_000
"""How long a writer waits for another one."""


class Database:
    """One database.

    Parameters
    ----------
    url
        ``sqlite:///FILE`` or ``postgresql://USER@HOST/NAME``.

    Raises
    ------
    OptionError
        If it is no such URL.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = sa.make_url(url)
        except ArgumentError:
            raise OptionError(
                "the store's URL cannot be read: write it like sqlite:///moeplan.db or "
                "postgresql://user@host/name"
            ) from None
        self.label = parsed.render_as_string(hide_password=True)
        backend = parsed.get_backend_name()
        if backend not in ("sqlite", "postgresql"):
            raise OptionError(f"the store {self.label} is neither sqlite: nor postgresql:")
        self.postgresql = backend == "postgresql"
        options: dict[str, Any] = {"pool_size": 20, "max_overflow": 20, "pool_timeout": 20}
        if self.postgresql:
            parsed = parsed.set(drivername="postgresql+psycopg")
            options |= {"pool_pre_ping": True, "connect_args": {"connect_timeout": 10}}
        elif not parsed.database or parsed.database == ":memory:" or parsed.query:
            raise OptionError(
                f"the store {self.label}: name a file, as in sqlite:///moeplan.db: servers and "
                "workers are several processes"
            )
        try:
            self._engine = sa.create_engine(parsed, **options)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise OptionError(f"the store {self.label}: {error}") from error
        if not self.postgresql:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)

        self._watching: sqlite3.Connection | None = None

    def exists(self) -> bool:
        """Whether it is more than a name: a file that is there, or a server's."""
        return self.postgresql or exists(Path(self._engine.url.database or ""))

    def close(self) -> None:
        """Close all connections."""
        if self._watching is not None:
            self._watching.close()
        self._engine.dispose()

    def version(self) -> int | None:
        """A number that is another one after every change, whoever made it; from one thread only.

        None where the database has none to tell quickly: PostgreSQL, or a file that cannot be read.
        """
        if self.postgresql:
            return None
        try:
            if self._watching is None:
                # its own connection, which changes nothing: its own changes would not be told
                file = self._engine.url.database or ""
                self._watching = sqlite3.connect(file, check_same_thread=False, timeout=0)
            return int(self._watching.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return None

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that changes nothing."""
        with self._told(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that may change something: all of it, or on an exception nothing."""
        with self._told(), self._engine.connect() as connection:
            connection = connection.execution_options(moeplan_writes=True)
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Foreign errors as ours, in one line and without the statement."""
        try:
            yield
        except PoolTimeout as error:
            raise StoreError(f"the store {self.label} is too busy") from error
        except DBAPIError as error:
            if _is_full(error.orig):
                raise StoreFullError(
                    f"the store {self.label} cannot be used: its disk is full: make room there"
                ) from error
            reason = " ".join(str(error.orig).split())
            raise StoreError(f"the store {self.label} cannot be used: {reason}") from error

    def now(self, connection: sa.Connection) -> float:
        """Seconds since 1970 by one clock for all who share the store.

        PostgreSQL's own; a SQLite file is shared on one machine, whose clock it is.
        """
        if self.postgresql:
            return float(connection.execute(_CLOCK).scalar_one())
        return time.time()

    def insert_new(self, connection: sa.Connection, table: sa.Table, row: dict[str, Any]) -> bool:
        """Insert a row unless its primary key is there; whether it was inserted."""
        dialect = postgresql if self.postgresql else sqlite
        statement = dialect.insert(table).values(**row).on_conflict_do_nothing()
        key = next(iter(table.primary_key.columns))
        return connection.execute(statement.returning(key)).one_or_none() is not None

    def changed(self, connection: sa.Connection, statement: sa.Update) -> bool:
        """Carry out an update of at most one row; whether there was one."""
        found = connection.execute(statement)
        return bool(found.rowcount == 1)


def page(
    statement: sa.Select[Any],
    time: sa.ColumnElement[Any],
    key: sa.ColumnElement[Any],
    *,
    limit: int,
    after: str | None,
) -> sa.Select[Any]:
    """At most ``limit`` rows, the newest first: those behind the row whose key is ``after``."""
    if after is not None:
        here = sa.select(time, key).where(key == after).subquery()
        statement = statement.where(sa.tuple_(time, key) < sa.select(here).scalar_subquery())
    return statement.order_by(time.desc(), key.desc()).limit(limit)


def _is_full(error: BaseException | None) -> bool:
    lite, postgres = getattr(error, "sqlite_errorcode", None), getattr(error, "sqlstate", None)
    return lite == sqlite3.SQLITE_FULL or postgres == "53100"


_CLOCK = sa.text("SELECT extract(epoch FROM clock_timestamp())")


def _prepare_sqlite(connection: Any, _: object) -> None:
    # the driver begins no transactions by itself: _begin_sqlite does
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}").close()
    deadline = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
            break
        except sqlite3.OperationalError as error:
            # SQLite does not wait by itself for another that changes a new file's mode, too
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    for pragma in ("synchronous = FULL", "trusted_schema = OFF"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # a writer takes its lock at the start: a reader that turns writer could never wait for one
    writes = connection.get_execution_options().get("moeplan_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
