"""Stored secrets: what `${{ secrets.NAME }}` stands for, sealed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "secrets",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("user", sa.String(64)),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("sealed", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_secrets"),
        sa.ForeignKeyConstraint(
            ["user"], ["users.name"], name="fk_secrets_user", ondelete="CASCADE"
        ),
    )
