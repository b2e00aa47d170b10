"""Orphans: what an admin asked for, and what each costs, outlive their events."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "orphans",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("gone_at", sa.Double()),
        sa.Column("rest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_orphans"),
    )
    rows = [_row(name, found) for name, found in _there().items()]
    if rows:
        table = sa.table("orphans", sa.column("id"), sa.column("gone_at"), sa.column("rest"))
        op.bulk_insert(table, rows)


def _there() -> dict[str, dict[str, Any]]:
    """Return the orphans that the events say are there: when each was found, and its status."""
    events = sa.table("events", *map(sa.column, ("seq", "run_id", "kind", "at", "rest")))
    query = (
        sa.select(events.c.at, events.c.rest)
        .where(events.c.run_id == "", events.c.kind == "orphan")
        .order_by(events.c.seq)
    )
    found: dict[str, dict[str, Any]] = {}
    for at, rest in op.get_bind().execute(query).all():
        event = json.loads(rest)
        name, status = event.get("reason"), event.get("to_status")
        if status == "gone":
            found.pop(name, None)
        elif name is not None and status is not None:
            before = found.setdefault(name, {"found_at": at})
            before["status"] = status
    return found


def _row(name: str, found: dict[str, Any]) -> dict[str, Any]:
    provider, _, instance_id = name.partition("/")
    found_at = found["found_at"]
    # The next list tells its traits, and its price follows from them.
    rest = {
        "provider": provider,
        "instance_id": instance_id,
        "status": found["status"],
        "created_at": found_at,
        "found_at": found_at,
        "costs_since": found_at,
    }
    key = hashlib.sha256(f"{name} {found_at}".encode()).hexdigest()[:32]
    return {"id": key, "gone_at": None, "rest": json.dumps(rest)}
