"""What machines have cost on each day of UTC: kept for longer than their records and runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cost_days",
        sa.Column("day", sa.String(64), nullable=False),
        sa.Column("rest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("day", name="pk_cost_days"),
    )
