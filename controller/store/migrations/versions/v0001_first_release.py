"""The tables of the first release: runs, jobs, attempts, allocations, nodes, users and events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.String(64)
NUMBER = sa.BigInteger()
TIME: sa.Double[float] = sa.Double()
TEXT = sa.Text()
FLAG = sa.Boolean(create_constraint=False)
SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_installation()
    _create_users()
    _create_fleets()
    _create_nodes()
    _create_runs()
    _create_jobs()
    _create_attempts()
    _create_allocations()
    _create_events()


def _create_installation() -> None:
    op.create_table(
        "installation",
        sa.Column("id", ID, nullable=False),
        sa.Column("epoch", NUMBER, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("restored_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_installation"),
    )
    op.create_table(
        "leases",
        sa.Column("name", ID, nullable=False),
        sa.Column("holder", TEXT, nullable=False),
        sa.Column("token", NUMBER, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )


def _create_users() -> None:
    op.create_table(
        "users",
        sa.Column("name", ID, nullable=False),
        sa.Column("role", ID, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("rest", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_users"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", ID, nullable=False),
        sa.Column("user", ID, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("label", TEXT, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.ForeignKeyConstraint(
            ["user"], ["users.name"], name="fk_tokens_user", ondelete="CASCADE"
        ),
    )


def _create_fleets() -> None:
    op.create_table(
        "fleets",
        sa.Column("name", ID, nullable=False),
        sa.Column("placement", TEXT),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("rest", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_fleets"),
    )


def _create_nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", ID, nullable=False),
        sa.Column("fleet", ID, nullable=False),
        sa.Column("status", ID, nullable=False),
        sa.Column("draining", FLAG, nullable=False),
        sa.Column("message", TEXT),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("last_seen_at", TIME),
        sa.Column("rest", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", ID, nullable=False),
        sa.Column("type", ID, nullable=False),
        sa.Column("user", ID, nullable=False),
        sa.Column("status", ID, nullable=False),
        sa.Column("reason", ID),
        sa.Column("message", TEXT),
        sa.Column("parent_id", ID),
        sa.Column("client_key", TEXT),
        sa.Column("suspended", FLAG, nullable=False),
        sa.Column("occurrence", NUMBER, nullable=False),
        sa.Column("deployment", NUMBER, nullable=False),
        sa.Column("version", NUMBER, nullable=False),
        sa.Column("next_triggered_at", TIME),
        sa.Column("submitted_at", TIME, nullable=False),
        sa.Column("finished_at", TIME),
        sa.Column("policy", TEXT, nullable=False),
        sa.Column("configuration", TEXT, nullable=False),
        sa.Column("rest", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_submitted_at_id", "runs", ["submitted_at", "id"])
    op.create_index("ix_runs_name_submitted_at", "runs", ["name", "submitted_at"])
    op.create_index("ix_runs_status", "runs", ["status"])
    op.create_index("ix_runs_user_client_key", "runs", ["user", "client_key"])
    op.create_index("ix_runs_finished_at", "runs", ["finished_at"])
    op.create_index("ix_runs_parent_id", "runs", ["parent_id"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("group", ID, nullable=False),
        sa.Column("replica", NUMBER, nullable=False),
        sa.Column("cookie", NUMBER, nullable=False),
        sa.Column("index", NUMBER, nullable=False),
        sa.Column("rank", NUMBER),
        sa.Column("abandoned", FLAG, nullable=False),
        sa.Column("retry_at", TIME),
        sa.Column("spec", TEXT, nullable=False),
        sa.Column("rest", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_jobs_run_id", ondelete="CASCADE"),
    )
    op.create_index("ix_jobs_run_id", "jobs", ["run_id"])


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", ID, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("occurrence", NUMBER, nullable=False),
        sa.Column("status", ID, nullable=False),
        sa.Column("reason", ID),
        sa.Column("message", TEXT),
        sa.Column("exit_code", NUMBER),
        sa.Column("node_id", ID),
        sa.Column("allocation_id", ID),
        sa.Column("submitted_at", TIME, nullable=False),
        sa.Column("provisioned_at", TIME),
        sa.Column("pulling_at", TIME),
        sa.Column("running_at", TIME),
        sa.Column("terminating_at", TIME),
        sa.Column("finished_at", TIME),
        sa.Column("rest", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_attempts_job_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_attempts_job_id", "attempts", ["job_id"])
    op.create_index("ix_attempts_run_id", "attempts", ["run_id"])


def _create_allocations() -> None:
    op.create_table(
        "allocations",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("node_id", ID, nullable=False),
        sa.Column("state", ID, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("released_at", TIME),
        sa.Column("rest", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_allocations"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name="fk_allocations_run_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_allocations_run_id", "allocations", ["run_id"])
    op.create_index("ix_allocations_state", "allocations", ["state"])
    op.create_index("ix_allocations_released_at", "allocations", ["released_at"])


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("seq", SEQUENCE, nullable=False, autoincrement=True),
        sa.Column("run_id", ID),
        sa.Column("job_id", ID),
        sa.Column("attempt_id", ID),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("message", TEXT),
        sa.Column("rest", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_run_id_seq", "events", ["run_id", "seq"])
