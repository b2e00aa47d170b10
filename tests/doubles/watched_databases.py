"""Databases that show a test the engine with which the store writes: it can listen there."""

from __future__ import annotations

import sqlalchemy as sa

from controller.store.postgresql import PostgresqlDatabase
from controller.store.sqlite import SqliteDatabase


class WatchedSqlite(SqliteDatabase):
    """`engine` is there once the store is open."""

    engine: sa.Engine

    def writer(self) -> sa.Engine:
        self.engine = super().writer()
        return self.engine


class WatchedPostgresql(PostgresqlDatabase):
    """`engine` is there once the store is open."""

    engine: sa.Engine

    def writer(self) -> sa.Engine:
        self.engine = super().writer()
        return self.engine


class FollowedSqlite(SqliteDatabase):
    """SQLite, whose turns are written down as if other controllers followed."""

    @property
    def is_shared(self) -> bool:
        return True
