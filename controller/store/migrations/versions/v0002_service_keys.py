"""Keys that open one service alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ID = sa.String(64)
TIME: sa.Double[float] = sa.Double()
TEXT = sa.Text()


def upgrade() -> None:
    op.create_table(
        "service_keys",
        sa.Column("id", ID, nullable=False),
        sa.Column("service", ID, nullable=False),
        sa.Column("user", ID, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("label", TEXT, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_service_keys"),
        sa.ForeignKeyConstraint(
            ["user"], ["users.name"], name="fk_service_keys_user", ondelete="CASCADE"
        ),
    )
