"""Documents, blobs, jobs and tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["branch_labels", "depends_on", "down_revision", "downgrade", "revision", "upgrade"]

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "documents",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("size_bytes", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_index(
        "ix_documents_kind_created_at_hash", "documents", ["kind", "created_at", "hash"]
    )
    op.create_table(
        "blobs",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("size_bytes", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("inputs", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
        sa.Column("finished_at", sa.Double),
        sa.Column("changes", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(64)),
        sa.Column("lease_until", sa.Double),
        sa.Column("cancel", sa.Boolean, nullable=False),
        sa.Column("progress", sa.Text),
        sa.Column("result_hash", sa.String(64)),
        sa.Column("error", sa.Text),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name="state_known"
        ),
        sa.CheckConstraint("(state = 'running') = (owner IS NOT NULL)", name="owner_runs"),
        sa.CheckConstraint("(state = 'done') = (result_hash IS NOT NULL)", name="result_done"),
    )
    op.create_index("ix_jobs_state_created_at", "jobs", ["state", "created_at"])
    op.create_index("ix_jobs_created_at_id", "jobs", ["created_at", "id"])
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("revoked_at", sa.Double),
    )


def downgrade() -> None:
    """Drop them again, with all they hold."""
    for name in ("tokens", "jobs", "blobs", "documents"):
        op.drop_table(name)
