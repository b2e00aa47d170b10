"""Fleets, what users were granted, when a backup was restored, and ways to find what is old."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fleets",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("placement", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("rest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_fleets"),
    )
    op.add_column("installation", sa.Column("restored_at", sa.Double()))
    op.add_column("users", sa.Column("rest", sa.Text(), nullable=False, server_default="{}"))
    op.create_index("ix_runs_finished_at", "runs", ["finished_at"])
    op.create_index("ix_allocations_released_at", "allocations", ["released_at"])
