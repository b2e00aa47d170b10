"""`controller backup`, `restore` and `mark-restored`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App

from controller import backups
from controller.cli import output
from controller.cli.commands.options import Flag
from controller.cli.commands.serve import controller
from controller.cli.databaseurl import find_database
from controller.cli.errors import CliError
from controller.store.base import StoreError

app = App(name="controller", help="Start a controller; back it up and restore it.")
app.default(controller)


@app.command
def backup(file: Path, /, *, data: Path) -> int:
    """Copy a controller's database and keys to one file, while it works.

    Logs and uploads are not in it. A PostgreSQL database is backed up with pg_dump.

    Parameters
    ----------
    file
        The new file, which its owner alone can read.
    data
        The controller's folder.
    """
    try:
        backups.make(data, file)
    except backups.BackupFailed as error:
        raise CliError(str(error)) from None
    output.emit(f"backed up to {file}")
    return 0


@app.command
def restore(file: Path, /, *, data: Path, force: Annotated[bool, Flag] = False) -> int:
    """Put a backup into the folder of a controller that is stopped.

    What nodes run and the backup does not know is kept running and listed as quarantined.

    Parameters
    ----------
    file
        What `controller backup` has made.
    data
        The controller's folder; made when it is missing.
    force
        Replace the database that is there.
    """
    try:
        epoch = backups.restore(file, data, force=force, now=time.time())
    except (backups.BackupFailed, StoreError) as error:
        raise CliError(str(error)) from None
    output.emit(f"restored to {data}; its epoch is {epoch}")
    return 0


@app.command(name="mark-restored")
def mark_restored(
    *, data: Path, database: str | None = None, database_file: Path | None = None
) -> int:
    """Say that a database was put back by other means, such as pg_restore or a copy of the disk.

    Do it before the controller is started, so that nodes take its word over that of the lives that
    it has forgotten, and so that nothing they run is taken for garbage.

    Parameters
    ----------
    data
        The controller's folder.
    database
        As of `fairlead controller`.
    database_file
        As of `fairlead controller`.
    """
    try:
        where = find_database(data, database, database_file, os.environ)
        epoch = backups.mark_restored(where, time.time())
    except (backups.BackupFailed, StoreError) as error:
        raise CliError(str(error)) from None
    output.emit(f"marked as restored; its epoch is {epoch}")
    return 0
