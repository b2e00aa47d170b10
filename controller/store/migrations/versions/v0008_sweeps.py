"""Sweeps: the parameter sets of a run, and what the jobs that have not begun are made from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("sets", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_sweeps"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name="fk_sweeps_run_id", ondelete="CASCADE"
        ),
    )
