"""The store: documents and blobs by hash, jobs with leases, API tokens; SQLite or PostgreSQL.

``database`` has connections and transactions, ``tables`` what ``migrate`` brings a database to
(``versions``, one migration a file); ``documents``, ``jobs`` and ``tokens`` are what is kept.
"""

from __future__ import annotations

from moeplan.service.errors import QueueFullError, StoreError, StoreFullError
from moeplan.service.store.database import Database
from moeplan.service.store.documents import Documents, Kept
from moeplan.service.store.jobs import Beat, Job, Jobs
from moeplan.service.store.migrate import migrate
from moeplan.service.store.tokens import Token, Tokens

__all__ = [
    "Beat",
    "Database",
    "Documents",
    "Job",
    "Jobs",
    "Kept",
    "QueueFullError",
    "Store",
    "StoreError",
    "StoreFullError",
    "Token",
    "Tokens",
    "migrate",
]


class Store:
    """Everything the service keeps.

    Parameters
    ----------
    url
        A SQLAlchemy URL of SQLite or PostgreSQL.
    existing
        A file that is not there is not made.

    Raises
    ------
    OptionError
        If the URL is of another kind.
    StoreError
        If the database cannot be reached or brought to this version.
    """

    def __init__(self, url: str, *, existing: bool = False) -> None:
        self.database = Database(url)
        if existing and not self.database.exists():
            raise StoreError(f"there is no store {self.database.label}")
        migrate(self.database)
        self.documents = Documents(self.database)
        self.jobs = Jobs(self.database)
        self.tokens = Tokens(self.database)

    def close(self) -> None:
        """Close all connections."""
        self.database.close()
