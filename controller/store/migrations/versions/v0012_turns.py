"""Turns: what each of the latest commits changed, for controllers that follow the leader."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "turns",
        sa.Column("number", number, autoincrement=True, nullable=False),
        sa.Column("leader", sa.String(64), nullable=False),
        sa.Column("changed", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_turns"),
    )
