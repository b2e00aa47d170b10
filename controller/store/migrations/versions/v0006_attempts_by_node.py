"""Attempts by node: what a node's fault hit, and the events of its jobs."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_attempts_node_id", "attempts", ["node_id"])
