"""A way to find the children of a run."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_runs_parent_id", "runs", ["parent_id"])
