"""Gateways: the machines through which services are reached."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gateways",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("rest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_gateways"),
    )
