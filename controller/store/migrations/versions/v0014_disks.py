"""The free bytes of each controller's disk: one whose disk is full lets another one lead."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("controllers", sa.Column("free_bytes", sa.BigInteger()))
