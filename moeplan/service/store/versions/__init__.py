"""Migrations, one a file; Alembic walks them by ``down_revision``."""

__all__: list[str] = []
