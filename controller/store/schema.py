"""Brings a database to the schema of this version, and knows which installation it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import sqlalchemy as sa

from controller.store.base import StoreUnusable
from controller.store.tables import SCHEMA_VERSION, installation

MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(connection: sa.Connection) -> str:
    """The schema version after it; all in the transaction of `connection`. Raises StoreUnusable for
    a database of a newer version.

    Alembic is imported only when there is something to migrate: it costs a controller's start a
    tenth of a second and ten megabytes.
    """
    if version(connection) != SCHEMA_VERSION:
        _migrate(connection)
    return SCHEMA_VERSION


def version(connection: sa.Connection) -> str | None:
    """None: there is nothing yet."""
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
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreUnusable(
            f"the database has schema {version(connection)!r}, which this version of fairlead"
            f" (schema {SCHEMA_VERSION!r}) does not know: use the newer version that wrote it"
        ) from error


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    epoch: int
    restored_at: float | None


def identify(connection: sa.Connection, *, new_id: str, now: float) -> Installation:
    """Id and epoch are made on the first start."""
    row = connection.execute(sa.select(installation)).one_or_none()
    if row is not None:
        return Installation(id=row.id, epoch=row.epoch, restored_at=row.restored_at)
    connection.execute(installation.insert().values(id=new_id, epoch=1, created_at=now))
    return Installation(id=new_id, epoch=1, restored_at=None)


def begin_epoch(connection: sa.Connection, now: float) -> int:
    """The database was restored: its new epoch, greater than any that shims have seen of it, and
    another one than any other copy of the same backup gets: shims obey the later one alone."""
    epoch = connection.execute(sa.select(installation.c.epoch)).scalar_one()
    epoch = max(epoch + 1, int(now * 1_000_000))
    connection.execute(installation.update().values(epoch=epoch, restored_at=now))
    return int(epoch)
