"""Lists of runs by status, user and band, newest first, without sorting all of them.

The band gets a column of its own; its value is in `policy` already.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BAND = {
    "sqlite": "json_extract(policy, '$.band')",
    "postgresql": "json_extract_path_text(CAST(policy AS json), 'band')",
}


def upgrade() -> None:
    op.add_column(
        "runs", sa.Column("band", sa.String(64), nullable=False, server_default="interactive")
    )
    stored = BAND[op.get_bind().dialect.name]
    op.execute(f"UPDATE runs SET band = COALESCE({stored}, 'interactive')")
    op.drop_index("ix_runs_status", "runs")
    for column in ("status", "user", "band"):
        op.create_index(f"ix_runs_{column}_submitted_at_id", "runs", [column, "submitted_at", "id"])
