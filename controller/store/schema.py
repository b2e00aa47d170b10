"""The tables, the migrations, and the identity of an installation."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import sqlalchemy as sa

from controller.store.errors import StoreUnusable

log = logging.getLogger(__name__)

SCHEMA_VERSION = "0015"
CONTROLLERS_SINCE = "0007"
"""The first version with the table of controllers."""
DISKS_SINCE = "0014"
"""The first version that knows how much room the disks of controllers have."""
metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)
# SQLite numbers rows by itself only in an INTEGER PRIMARY KEY (sqlite.org/autoinc.html).
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON_COLUMN = {"json": True}


def _id(name: str = "id") -> sa.Column[str]:
    return sa.Column(name, sa.String(64), primary_key=True)


def _text(name: str, *, nullable: bool = True) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _word(name: str, *, nullable: bool = True) -> sa.Column[str]:
    return sa.Column(name, sa.String(64), nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(create_constraint=False), nullable=False)


def _time(name: str, *, nullable: bool = True) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _json(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, info=JSON_COLUMN)


def _rest() -> sa.Column[str]:
    return sa.Column("rest", sa.Text(), nullable=False)


def _owner(table: str, column: str) -> sa.Column[str]:
    return sa.Column(
        column, sa.String(64), sa.ForeignKey(f"{table}.id", ondelete="CASCADE"), nullable=False
    )


installation = sa.Table(
    "installation",
    metadata,
    _id(),
    sa.Column("epoch", sa.BigInteger(), nullable=False),
    _time("created_at", nullable=False),
    _time("restored_at"),
    sa.Column("timeline", sa.BigInteger(), nullable=True),
)
leases = sa.Table(
    "leases",
    metadata,
    _id("name"),
    _text("holder", nullable=False),
    sa.Column("token", sa.BigInteger(), nullable=False),
    _time("expires_at", nullable=False),
)
controllers = sa.Table(
    "controllers",
    metadata,
    _id(),
    _text("url", nullable=False),
    _text("version", nullable=False),
    _text("keys"),
    sa.Column("token", sa.BigInteger(), nullable=True),
    sa.Column("has_lock", sa.Boolean(), nullable=False),
    _time("started_at", nullable=False),
    _time("seen_at", nullable=False),
    sa.Column("free_bytes", sa.BigInteger(), nullable=True),
)
users = sa.Table(
    "users",
    metadata,
    _id("name"),
    _word("role", nullable=False),
    _time("created_at", nullable=False),
    _rest(),
)
tokens = sa.Table(
    "tokens",
    metadata,
    _id(),
    sa.Column(
        "user", sa.String(64), sa.ForeignKey("users.name", ondelete="CASCADE"), nullable=False
    ),
    _text("digest", nullable=False),
    _text("label", nullable=False),
    _time("created_at", nullable=False),
    _time("expires_at"),
)
service_keys = sa.Table(
    "service_keys",
    metadata,
    _id(),
    _word("service", nullable=False),
    sa.Column(
        "user", sa.String(64), sa.ForeignKey("users.name", ondelete="CASCADE"), nullable=False
    ),
    _text("digest", nullable=False),
    _text("label", nullable=False),
    _time("created_at", nullable=False),
)
secrets = sa.Table(
    "secrets",
    metadata,
    _id(),
    sa.Column(
        "user", sa.String(64), sa.ForeignKey("users.name", ondelete="CASCADE"), nullable=True
    ),
    _word("name", nullable=False),
    _text("sealed", nullable=False),
    _time("created_at", nullable=False),
    _time("updated_at", nullable=False),
)
catalogs = sa.Table(
    "catalogs",
    metadata,
    _id("name"),
    _rest(),
)
cost_days = sa.Table(
    "cost_days",
    metadata,
    _id("day"),
    _rest(),
)
turns = sa.Table(
    "turns",
    metadata,
    sa.Column("number", _SEQUENCE, primary_key=True, autoincrement=True),
    _word("leader", nullable=False),
    _text("changed", nullable=False),
)
gateways = sa.Table(
    "gateways",
    metadata,
    _id("name"),
    _text("domain", nullable=False),
    _time("created_at", nullable=False),
    _rest(),
)
fleets = sa.Table(
    "fleets",
    metadata,
    _id("name"),
    _text("placement"),
    _time("created_at", nullable=False),
    _rest(),
)
nodes = sa.Table(
    "nodes",
    metadata,
    _id(),
    _word("name", nullable=False),
    _word("fleet", nullable=False),
    _word("status", nullable=False),
    _flag("draining"),
    _text("message"),
    _time("created_at", nullable=False),
    _time("last_seen_at"),
    _rest(),
)
machines = sa.Table(
    "machines",
    metadata,
    _id(),
    _word("fleet", nullable=False),
    _word("status", nullable=False),
    _time("ordered_at", nullable=False),
    _time("terminated_at"),
    _rest(),
)
orphans = sa.Table(
    "orphans",
    metadata,
    _id(),
    _time("gone_at"),
    _rest(),
)
runs = sa.Table(
    "runs",
    metadata,
    _id(),
    _word("name", nullable=False),
    _word("type", nullable=False),
    _word("user", nullable=False),
    _word("status", nullable=False),
    _word("reason"),
    _text("message"),
    _word("parent_id"),
    _text("client_key"),
    _flag("suspended"),
    _number("occurrence"),
    _number("deployment"),
    _number("version"),
    _time("next_triggered_at"),
    _time("submitted_at", nullable=False),
    _time("finished_at"),
    _json("policy"),
    _json("configuration"),
    _rest(),
    # A migration adds it to a table that has rows, where NOT NULL needs a default.
    sa.Column("band", sa.String(64), nullable=False, server_default="interactive"),
    sa.Index("ix_runs_submitted_at_id", "submitted_at", "id"),
    sa.Index("ix_runs_name_submitted_at", "name", "submitted_at"),
    sa.Index("ix_runs_status_submitted_at_id", "status", "submitted_at", "id"),
    sa.Index("ix_runs_user_submitted_at_id", "user", "submitted_at", "id"),
    sa.Index("ix_runs_band_submitted_at_id", "band", "submitted_at", "id"),
    sa.Index("ix_runs_finished_at", "finished_at"),
    sa.Index("ix_runs_parent_id", "parent_id"),
    sa.Index("ix_runs_user_client_key", "user", "client_key"),
)
sweeps = sa.Table(
    "sweeps",
    metadata,
    sa.Column(
        "run_id", sa.String(64), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True
    ),
    _text("sets", nullable=False),
    _json("spec"),
)
jobs = sa.Table(
    "jobs",
    metadata,
    _id(),
    _owner("runs", "run_id"),
    _word("group", nullable=False),
    _number("replica"),
    _number("cookie"),
    _number("index"),
    _number("rank", nullable=True),
    _flag("abandoned"),
    _time("retry_at"),
    _json("spec"),
    _rest(),
    sa.Index("ix_jobs_run_id", "run_id"),
)
attempts = sa.Table(
    "attempts",
    metadata,
    _id(),
    _owner("jobs", "job_id"),
    sa.Column("run_id", sa.String(64), nullable=False),
    _number("number"),
    _number("occurrence"),
    _word("status", nullable=False),
    _word("reason"),
    _text("message"),
    _number("exit_code", nullable=True),
    _word("node_id"),
    _word("allocation_id"),
    _time("submitted_at", nullable=False),
    _time("provisioned_at"),
    _time("pulling_at"),
    _time("running_at"),
    _time("terminating_at"),
    _time("finished_at"),
    _rest(),
    sa.Index("ix_attempts_job_id", "job_id"),
    sa.Index("ix_attempts_run_id", "run_id"),
    sa.Index("ix_attempts_node_id", "node_id"),
)
allocations = sa.Table(
    "allocations",
    metadata,
    _id(),
    _owner("runs", "run_id"),
    _word("job_id", nullable=False),
    _word("node_id", nullable=False),
    _word("state", nullable=False),
    _time("created_at", nullable=False),
    _time("released_at"),
    _rest(),
    sa.Index("ix_allocations_run_id", "run_id"),
    sa.Index("ix_allocations_state", "state"),
    sa.Index("ix_allocations_released_at", "released_at"),
)
events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", _SEQUENCE, primary_key=True, autoincrement=True),
    _word("run_id"),
    _word("job_id"),
    _word("attempt_id"),
    _text("kind", nullable=False),
    _time("at", nullable=False),
    _text("message"),
    _rest(),
    sa.Index("ix_events_run_id_seq", "run_id", "seq"),
    # SQLite would else give the number of a removed last event again, and a reader who knows
    # that number would miss the new event (sqlite.org/autoinc.html).
    sqlite_autoincrement=True,
)
MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(connection: sa.Connection) -> str:
    """Bring the schema up to date in the transaction of `connection` and return its version.

    Raises StoreUnusable for a database of a newer version. Alembic is imported only when there is
    something to migrate: it costs a controller's start a tenth of a second and ten megabytes.
    """
    if version(connection) != SCHEMA_VERSION:
        _migrate(connection)
    return SCHEMA_VERSION


def version(connection: sa.Connection) -> str | None:
    """Return the schema's version; None: there are no tables yet."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(
        sa.text("SELECT version_num FROM alembic_version")
    ).scalar_one_or_none()
    return found


def _migrate(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    # Alembic reads options with ConfigParser, for which a % begins an interpolation.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    # alembic cannot find a revision that only a newer version has.
    except CommandError as error:
        raise StoreUnusable(
            f"the database has schema {version(connection)!r}, which this version of fairlead"
            f" (schema {SCHEMA_VERSION!r}) does not know: use the newer version that wrote it"
        ) from error


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of this controller's data."""

    id: str
    epoch: int
    restored_at: float | None


def identify(connection: sa.Connection, *, new_id: str, now: float) -> Installation:
    """Return the identity; the first start makes id and epoch."""
    row = connection.execute(sa.select(installation)).one_or_none()
    if row is not None:
        return Installation(id=row.id, epoch=row.epoch, restored_at=row.restored_at)
    connection.execute(installation.insert().values(id=new_id, epoch=1, created_at=now))
    return Installation(id=new_id, epoch=1, restored_at=None)


def follow(
    connection: sa.Connection, found: Installation, timeline: int, now: float
) -> Installation:
    """Return the identity on this timeline of the server.

    Another timeline begins when a standby is promoted, which may lack the last commits. Nodes have
    obeyed those, so this is a restore, and the epoch a new one.
    """
    known = connection.execute(sa.select(installation.c.timeline)).scalar_one()
    if known == timeline:
        return found
    connection.execute(installation.update().values(timeline=timeline))
    if known is None:
        return found
    log.warning(
        "the database's server was promoted (its timeline is %d, it was %d) and may lack the last "
        "commits: this counts as a restore",
        timeline,
        known,
    )
    epoch = begin_epoch(connection, now)
    return Installation(id=found.id, epoch=epoch, restored_at=now)


def installation_of(connection: sa.Connection) -> str | None:
    """Return the id of the installation whose database this is; None: it is empty."""
    if version(connection) is None:
        return None
    return connection.execute(sa.select(installation.c.id)).scalar_one_or_none()


def begin_epoch(connection: sa.Connection, now: float) -> int:
    """Begin a new epoch after a restore and return it.

    It is greater than any that shims have seen, and differs from that of any other copy of the same
    backup: shims obey only the greatest.
    """
    epoch = connection.execute(sa.select(installation.c.epoch)).scalar_one()
    epoch = max(epoch + 1, int(now * 1_000_000))
    connection.execute(installation.update().values(epoch=epoch, restored_at=now))
    return int(epoch)
