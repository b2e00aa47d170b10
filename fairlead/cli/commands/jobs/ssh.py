"""Commands that reach a job's container by the user's own OpenSSH: `ssh`, `cp`, and `ssh-config`
for other programs."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import openssh, output
from fairlead.cli.errors import EXIT_FAILED, EXIT_USAGE, CliError
from fairlead.documents.jobs import SshTarget
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
    program = program_of("ssh")
    target, config = written_config(run, user, job)
    remote = [shlex.join(command)] if len(command) > 1 else list(command)
    separator = ["--"] if remote else []
    sys.stdout.flush()  # execve(2) drops what is buffered
    os.execv(program, ["ssh", "-F", str(config), target.run_name, *separator, *remote])


def cp(source: str, destination: str, /, *, user: str = "root", job: str | None = None) -> int:
    """Copy a file or a folder to a run's job, or from it; the exit status is that of scp.

    Parameters
    ----------
    source
        A path, or RUN:PATH for one in the job's container.
    destination
        The same; one of the two is in the container.
    user
        A user of the image.
    job
        Id, GROUP/COOKIE or index; default: the first.
    """
    runs = [
        name for name, _ in (run_and_path(source), run_and_path(destination)) if name is not None
    ]
    if len(runs) != 1:
        raise CliError(
            "give one path of this machine and one RUN:PATH, such as out.txt train:/tmp/out.txt",
            EXIT_USAGE,
        )
    program = program_of("scp")
    target, config = written_config(runs[0], user, job)
    paths = (_for_scp(path, target.run_name) for path in (source, destination))
    sys.stdout.flush()
    os.execv(program, ["scp", "-r", "-F", str(config), "--", *paths])


def run_and_path(text: str) -> tuple[str | None, str]:
    """Return the run and the path of `RUN:PATH`. A path with a slash before its first colon is one
    of this machine."""
    run, colon, path = text.partition(":")
    return (run, path) if colon and run and "/" not in run else (None, text)


def _for_scp(text: str, host: str) -> str:
    run, path = run_and_path(text)
    if run is not None:
        return f"{host}:{path}"
    return path if path.startswith("/") else f"./{path}"  # no name of a host, and no option


def program_of(name: str) -> str:
    """Return the path of an OpenSSH program. Raises CliError."""
    program = shutil.which(name)
    if program is None:
        raise CliError(f"there is no {name} program here: install OpenSSH's client", EXIT_FAILED)
    return program


def written_config(run: str, user: str, job: str | None) -> tuple[SshTarget, Path]:
    """Return the way to the job, and the written configuration for `ssh -F`. Raises
    FairleadError."""
    target, blocks, folder = _prepare(run, user, job)
    try:
        return target, openssh.write_config(target, blocks, folder)
    except OSError as error:
        raise _cannot_write(folder, error) from None


def ssh_config(
    run: str,
    /,
    *,
    user: str = "root",
    job: str | None = None,
    install: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Print the entries for `~/.ssh/config`, for editors and other programs that use ssh.

    Parameters
    ----------
    run
        Id or name.
    user
        A user of the image.
    job
        Id, GROUP/COOKIE or index; default: the first.
    install
        Write the entries to a file that `~/.ssh/config` includes, so that `ssh RUN` works. Use it
        again after each new start of the job.
    """
    target, blocks, folder = _prepare(run, user, job)
    if install:
        try:
            openssh.install(target, blocks, folder, Path.home())
        except OSError as error:
            raise CliError(f"cannot write the entry: {error}", EXIT_FAILED) from None
        output.note(f"`ssh {target.run_name}` works now, and so do editors that use ssh")
        return 0
    output.emit(blocks.rstrip("\n"))
    return 0


def _prepare(run: str, user: str, job: str | None) -> tuple[SshTarget, str, Path]:
    # It becomes a line of ssh's configuration, where a line end would begin another option.
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
