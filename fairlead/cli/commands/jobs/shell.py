"""`shell`: a job that exists for one SSH session, like `srun --pty`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.jobs.ssh import program_of, written_config
from fairlead.cli.display import display
from fairlead.cli.errors import EXIT_INTERRUPTED, EXIT_USAGE, CliError
from fairlead.documents.runs import RunView
from fairlead.errors import ApiError, ConnectionLost
from fairlead.files.ssh_keys import public_keys
from fairlead.follow import follow_run
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus
from fairlead.patience import FIRST_WAIT_SECONDS, Outages
from fairlead.rest import ControllerClient, decode, run_path
from fairlead.submission import (
    completed,
    given_variables,
    new_client_key,
    read_document,
    submit,
    with_code,
    with_code_there,
)
from fairlead.summaries.progress import step_of, why

SESSION = "/tmp/.fairlead-shell"
"""The process that stands for this command writes its pid there."""
FIRST_LOGIN_SECONDS = 300
LOGIN_SECONDS = 30.0
LOGIN_SHELL = 'exec "${SHELL:-/bin/sh}" -l'
_WAIT_FOR_SESSION = f"""\
rm -f {SESSION}; n=0
until [ -s {SESSION} ]; do n=$((n+1)); [ $n -le {FIRST_LOGIN_SECONDS} ] || exit 0; sleep 1; done
while [ -d /proc/"$(cat {SESSION})" ]; do sleep 1; done"""
"""The job's command: it ends when that process has ended."""
_HOLD = f"echo $$ > {SESSION}; echo in; exec cat > /dev/null"


def shell(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    file: Annotated[Path, Parameter(name=["-f", "--file"], allow_leading_hyphen=True)],
    name: Annotated[str | None, Parameter(name=["-n", "--name"])] = None,
    env: Annotated[tuple[str, ...], Parameter(name=["-e", "--env"], negative=())] = (),
    user: str = "root",
) -> int:
    """Start a job and work in its container; the job ends when you leave. The exit status is that
    of the shell or command.

    Parameters
    ----------
    command
        The command, after `--`; default: a shell.
    file
        The configuration, a YAML file: its image, resources, code and variables. Its commands are
        not run.
    name
        The run's name, instead of the configuration's.
    env
        As for `apply`.
    user
        The user of the image that you work as.
    """
    program = program_of("ssh")
    keys = public_keys(os.environ, Path.home())
    if not keys:
        raise CliError(
            "you have no SSH key: make one (`ssh-keygen -t ed25519`), or name one in"
            " FAIRLEAD_SSH_KEY",
            EXIT_USAGE,
        )
    client = settings.client()
    configuration = _interactive(file, env, os.environ)
    wish = {"name": name, "ssh_keys": keys, "client_key": new_client_key()}

    def send() -> dict[str, object]:
        here = file.resolve().parent
        sent = with_code(client, configuration, here, str(file), os.environ, output.note)
        return {**wish, "configuration": sent}

    data, _ = with_code_there(send, lambda body: submit(client, body, output.note), output.note)
    run = decode(data, RunView)
    output.note(f"submitted {run.name}")
    try:
        _await_running(client, run)
        return _work(client, run, program, user, command)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        _end(client, run)


def _interactive(file: Path, env: tuple[str, ...], environ: Mapping[str, str]) -> object:
    """Return the configuration of a job that waits for the session and ends with it."""
    document = read_document(file)
    written = completed(document, environ, given_variables(env, environ))
    assert isinstance(written, dict)  # `completed` has checked it
    for field in ("groups", "schedule"):
        if written.get(field):
            raise CliError(f"{file}: {field}: a shell is one job: leave it out", EXIT_USAGE)
    if written.get("ssh") in (False, "off"):
        raise CliError(f"{file}: ssh: a shell needs it: leave it out", EXIT_USAGE)
    if written.get("nodes", 1) != 1:
        raise CliError(f"{file}: nodes: a shell is one job: leave it out", EXIT_USAGE)
    kept = {key: one for key, one in written.items() if key not in ("entrypoint", "shell", "tty")}
    return {**kept, "commands": [_WAIT_FOR_SESSION], "retry": False}


def _await_running(client: ControllerClient, run: RunView) -> None:
    shown = display()
    try:
        for line in follow_run(client, run.id, Outages(output.note)):
            assert line.run is not None
            if line.run.status in FINAL_RUN_STATUSES:
                raise CliError(f"{run.name}: {line.run.status}: {why(line.run)}")
            if line.run.status is RunStatus.RUNNING:
                return
            shown.show(step_of(line.run, line.progress), output_flows=False)
    finally:
        shown.pause()


def _work(
    client: ControllerClient, run: RunView, program: str, user: str, command: tuple[str, ...]
) -> int:
    _, config = written_config(run.id, user, None)
    ssh = [program, "-F", str(config)]
    wanted = shlex.join(command) if len(command) > 1 else "".join(command)
    # With a command, ssh asks for no terminal by itself (ssh(1), -t).
    terminal = ["-t"] if sys.stdin.isatty() else []
    with _held(ssh, run.name):
        argv = [*ssh, *terminal, run.name, "--", wanted or LOGIN_SHELL]
        return subprocess.run(argv, check=False).returncode


@contextmanager
def _held(ssh: list[str], host: str) -> Iterator[None]:
    """Hold the job by a connection of its own: its other end ends when this process does, also when
    that is killed.

    The node lets the user's key in a moment after the job's start. Raises CliError with the words
    of ssh.
    """
    give_up_at = time.monotonic() + LOGIN_SECONDS
    while True:
        with subprocess.Popen(
            # Else ssh asks for a passphrase at the terminal at each try (ssh_config(5)).
            [*ssh, "-o", "BatchMode=yes", host, "--", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            assert holder.stderr is not None
            if holder.stdout.readline():
                yield
                holder.stdin.close()
                return
            message = holder.stderr.read().decode(errors="replace").strip()
        if time.monotonic() >= give_up_at:
            raise CliError(f"ssh does not get into {host}: {message or 'no answer'}")
        # The SSH server of the job opens its port a moment after the job is running.
        time.sleep(FIRST_WAIT_SECONDS)


def _end(client: ControllerClient, run: RunView) -> None:
    """End the run; when the controller is away, the job ends by itself."""
    try:
        client.post(run_path(run.id, "complete"), {})
    except ApiError:
        pass  # it has ended
    except ConnectionLost as error:
        output.note(f"{error}; {run.name} ends by itself")
