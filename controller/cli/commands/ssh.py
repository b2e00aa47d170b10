"""Commands that log in to a job's container: `ssh`, and `ssh-config` for other programs."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from controller.api.documents import SshTarget
from controller.cli import openssh, output
from controller.cli.errors import EXIT_FAILED, CliError
from fairlead import settings
from fairlead.rest import decode, run_path


def ssh(
    run: str,
    /,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    user: str = "root",
    job: str | None = None,
) -> int:
    """Log in to a run's job, or run a command there; the exit status is the command's.

    Parameters
    ----------
    run
        Id or name.
    command
        The command, after `--`; default: a shell.
    user
        A user of the image.
    job
        Id, GROUP/COOKIE or index; default: the first.
    """
    program = shutil.which("ssh")
    if program is None:
        raise CliError("there is no ssh program here: install OpenSSH's client", EXIT_FAILED)
    target, blocks, folder = _prepare(run, user, job)
    try:
        config = openssh.write_config(target, blocks, folder)
    except OSError as error:
        raise _cannot_write(folder, error) from None
    remote = [shlex.join(command)] if len(command) > 1 else list(command)
    separator = ["--"] if remote else []
    sys.stdout.flush()
    os.execv(program, ["ssh", "-F", str(config), target.run_name, *separator, *remote])


def ssh_config(run: str, /, *, user: str = "root", job: str | None = None) -> int:
    """Print the entries for `~/.ssh/config`, for editors and other programs that use ssh.

    Parameters
    ----------
    run
        Id or name.
    user
        A user of the image.
    job
        Id, GROUP/COOKIE or index; default: the first.
    """
    _, blocks, _ = _prepare(run, user, job)
    output.emit(blocks.rstrip("\n"))
    return 0


def _prepare(run: str, user: str, job: str | None) -> tuple[SshTarget, str, Path]:
    if not user or user.startswith("-") or not user.isprintable() or " " in user:
        raise CliError(f"--user: {user!r} is not a user's name", EXIT_FAILED)
    target = decode(settings.client().get(run_path(run, "ssh"), job=job), SshTarget)
    folder = openssh.state_folder(os.environ, Path.home())
    try:
        openssh.write_known_hosts(target, folder)
    except OSError as error:
        raise _cannot_write(folder, error) from None
    blocks = openssh.host_blocks(target, user, folder, openssh.identity(os.environ))
    return target, blocks, folder


def _cannot_write(folder: Path, error: OSError) -> CliError:
    return CliError(f"cannot write into {folder}: {error.strerror}", EXIT_FAILED)
