"""Machines: rented computers, with what they were ordered by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "machines",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("fleet", sa.String(64), nullable=False),
        sa.Column("status", sa.String(64), nullable=False),
        sa.Column("ordered_at", sa.Double(), nullable=False),
        sa.Column("terminated_at", sa.Double()),
        sa.Column("rest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_machines"),
    )
