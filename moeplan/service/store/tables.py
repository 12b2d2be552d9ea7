"""The tables, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

__all__ = ["METADATA", "STATES", "blobs", "documents", "jobs", "tokens"]

STATES = ("queued", "running", "done", "failed", "cancelled")

METADATA = MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s"})

documents = Table(
    "documents",
    METADATA,
    Column("hash", String(64), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("name", Text, nullable=False),
    Column("summary", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Index(None, "kind", "created_at", "hash"),
)

blobs = Table(
    "blobs",
    METADATA,
    Column("hash", String(64), primary_key=True),
    Column("data", LargeBinary, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
)

jobs = Table(
    "jobs",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("inputs", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("changes", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("owner", String(64)),
    Column("lease_until", Double),
    Column("cancel", Boolean, nullable=False),
    Column("progress", Text),
    Column("result_hash", String(64)),
    Column("error", Text),
    CheckConstraint(f"state IN {STATES}", name="state_known"),
    CheckConstraint("(state = 'running') = (owner IS NOT NULL)", name="owner_runs"),
    CheckConstraint("(state = 'done') = (result_hash IS NOT NULL)", name="result_done"),
    Index(None, "state", "created_at"),
    Index(None, "created_at", "id"),
)

tokens = Table(
    "tokens",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("name", Text, nullable=False),
    Column("secret_hash", String(64), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
)
