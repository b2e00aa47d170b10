"""`controller backup`, `restore` and `mark-restored`, next to `doctor` and `upgrade-check`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App

from controller import backups
from controller.commands.database_url import find_database
from controller.commands.examine import doctor, upgrade_check
from controller.commands.serve import controller
from controller.store.errors import StoreError
from fairlead.cli import output
from fairlead.cli.commands.options import Flag
from fairlead.cli.errors import CliError

app = App(name="controller", help="Start a controller; examine, back up and restore it.")
app.default(controller)
app.command(doctor)
app.command(upgrade_check, name="upgrade-check")


@app.command
def backup(file: Path, /, *, data: Path) -> int:
    """Copy a controller's database and keys to one file; the controller may be running.

    Logs and uploads are not in it. A PostgreSQL database is backed up with pg_dump.

    Parameters
    ----------
    file
        The new file; only its owner can read it.
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
    """Restore a backup to the folder of a stopped controller.

    Tasks on nodes that the backup does not know are kept running and listed as quarantined.

    Parameters
    ----------
    file
        A file made by `controller backup`.
    data
        The controller's folder; it is created if it is missing.
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
    """Record that a database was restored by other means, such as pg_restore or a disk copy.

    Do this before you start the controller. Then nodes obey it and not the controllers from before
    the restore, and tasks that it does not know are kept running.

    Parameters
    ----------
    data
        The controller's folder.
    database
        As for `fairlead controller`.
    database_file
        As for `fairlead controller`.
    """
    try:
        where = find_database(data, database, database_file, os.environ)
        epoch = backups.mark_restored(where, time.time())
    except (backups.BackupFailed, StoreError) as error:
        raise CliError(str(error)) from None
    output.emit(f"marked as restored; its epoch is {epoch}")
    return 0
