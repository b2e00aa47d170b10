"""The timeline of the PostgreSQL server: another one begins when a standby is promoted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("installation", sa.Column("timeline", sa.BigInteger()))
