"""Finds the controller's database: a file in its data folder, or a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from controller.store.errors import StoreUnusable
from controller.store.peers import Peers
from controller.store.sql import Database
from controller.store.sqlite import SqliteDatabase
from fairlead.cli.errors import EXIT_USAGE, CliError

VARIABLE = "FAIRLEAD_DATABASE_URL"


def find_database(
    data: Path,
    url: str | None,
    file: Path | None,
    environment: Mapping[str, str],
    peers: Peers | None = None,
) -> Database:
    """Return the database, which `peers` share. Raises CliError.

    The order is `url` (an option, so it has no password), the content of `file`, the environment,
    and the file in `data`.
    """
    if url is not None and file is not None:
        raise CliError("give --database or --database-file, not both", EXIT_USAGE)
    if url is not None:
        _refuse_password(url)
        return _postgresql(url, data, "--database", peers)
    if file is not None:
        return _postgresql(_read(file), data, f"--database-file {file}", peers)
    if environment.get(VARIABLE):
        return _postgresql(environment[VARIABLE].strip(), data, VARIABLE, peers)
    if peers is not None:
        raise CliError(
            "--url is for controllers that share a PostgreSQL database: give --database, "
            f"--database-file or {VARIABLE} too",
            EXIT_USAGE,
        )
    return SqliteDatabase(data)


def _postgresql(url: str, data: Path, source: str, peers: Peers | None) -> Database:
    from controller.store.postgresql import PostgresqlDatabase

    try:
        return PostgresqlDatabase(url, data, peers)
    except StoreUnusable as error:
        raise CliError(f"{source}: {error}", EXIT_USAGE) from None


def _refuse_password(url: str) -> None:
    try:
        parts = urlsplit(url)
        shown = parts.password is not None or "password" in parse_qs(parts.query)
    # urlsplit refuses half of an IPv6 address; the check of the URL says what is wrong.
    except ValueError:
        shown = False
    if shown:
        raise CliError(
            f"--database: other users of this machine can read a password on a command line; put "
            f"the URL into {VARIABLE} or a file (--database-file), or the password into ~/.pgpass",
            EXIT_USAGE,
        )


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise CliError(f"--database-file {file}: {why}", EXIT_USAGE) from None
