"""Bringing a database to the newest migration, from the program itself.

Alembic's environment script is not needed: the connection is at hand, and all runs in one
transaction that only one process holds at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import text

from moeplan.service.errors import StoreError
from moeplan.service.store.database import Database

__all__ = ["migrate"]

_LOCK = 0x6D6F6570
"""Number of the advisory lock that one migrating process holds."""


def migrate(database: Database, revision: str = "head") -> None:
    """Upgrade to ``revision``; nothing is done where the database has it.

    Raises
    ------
    StoreError
        If the database was made by a newer moeplan.
    """
    config = Config()
    here = Path(__file__).parent
    config.set_main_option("script_location", str(here).replace("%", "%%"))
    config.set_main_option("version_locations", str(here / "versions").replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    script = ScriptDirectory.from_config(config)

    def steps(current: Any, _: MigrationContext) -> Any:
        return script._upgrade_revs(revision, current)

    with database.write() as connection:
        if database.postgresql:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        try:
            with EnvironmentContext(config, script, fn=steps, as_sql=False) as environment:
                environment.configure(connection=connection, target_metadata=None)
                environment.run_migrations()
        except CommandError as error:
            raise StoreError(
                f"the store {database.label} was made by a newer moeplan ({error}): use that one"
            ) from error
