"""`apply --watch`: a task is replaced by a new run whenever its file or its code changes.

Each change stops the live run with its grace and submits a new run of the same name. So what runs
is always one whole version of the code, and every run keeps its own log and outputs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fairlead import settings
from fairlead.cli import follow, output
from fairlead.cli.commands.runs import applying
from fairlead.cli.errors import EXIT_INTERRUPTED, EXIT_USAGE, CliError
from fairlead.documents.runs import RunView
from fairlead.errors import FairleadError
from fairlead.files.ssh_keys import public_keys
from fairlead.model.statuses import FINAL_RUN_STATUSES
from fairlead.rest import ControllerClient, decode
from fairlead.submission import (
    completed,
    given_variables,
    read_document,
    submit,
    with_code,
    with_code_digested,
    with_overrides,
)
from fairlead.summaries.progress import why

POLL_SECONDS = 0.5
REST = 10
"""A look at large code takes its time: nine tenths of the time nothing looks."""


class Watched:
    """The file of a task, with all that is sent with it."""

    def __init__(self, file: Path, env: tuple[str, ...], override: tuple[str, ...]) -> None:
        self._file = file
        self._here = file.resolve().parent
        self._override = override
        self._variables = given_variables(env, os.environ)

    def look(self) -> bytes:
        """Return what would be submitted now, with the digests of its code. Raises FairleadError,
        CliError."""
        document, configuration = self._read()
        name = str(self._file)
        found = with_code_digested(configuration, self._here, name, os.environ, document)
        return msgspec.json.encode(found, order="deterministic")

    def sent(self, client: ControllerClient) -> object:
        """Upload the code; return the configuration to submit."""
        document, configuration = self._read()
        name = str(self._file)
        return with_code(client, configuration, self._here, name, os.environ, output.note, document)

    def _read(self) -> tuple[Any, object]:
        document = with_overrides(read_document(self._file), self._override)
        configuration = completed(document, os.environ, self._variables)
        found = configuration if isinstance(configuration, dict) else {}
        if found.get("type") != "task" or "schedule" in found:
            raise CliError("--watch: it is for a task without a schedule", EXIT_USAGE)
        return document, configuration


def wait_for_change(
    look: Callable[[], bytes], seen: bytes, ended: threading.Event, tell: Callable[[str], None]
) -> bool:
    """Wait until two looks in a row see the same, and not what was `seen`: between them an editor
    may still write. A look that fails is told. Return False once `ended` is set."""
    before, problem, pause = seen, "", POLL_SECONDS
    while not ended.wait(pause):
        began = time.monotonic()
        try:
            now = look()
        except (FairleadError, CliError, OSError) as error:
            if str(error) != problem:
                problem = str(error)
                tell(problem)
            continue
        pause = max(POLL_SECONDS, (REST - 1) * (time.monotonic() - began))
        if now == before != seen:
            return True
        before, problem = now, ""
    return False


def apply_watched(
    file: Path,
    *,
    name: str | None,
    env: tuple[str, ...],
    override: tuple[str, ...],
    if_exists: str,
    parent: str | None,
) -> int:
    """Submit the task and follow it, again after each change, until Ctrl-C."""
    if str(file) == "-":
        raise CliError("--watch: standard input does not change; give a file", EXIT_USAGE)
    client, watched = settings.client(), Watched(file, env, override)
    run: RunView | None = None
    try:
        while True:
            # Before the code is sent: what changes while it is sent is seen afterwards.
            seen = watched.look()
            try:
                run = _submitted(client, watched, name, if_exists, parent)
            except (FairleadError, CliError) as error:
                if run is None:
                    raise
                output.note(str(error))
            else:
                name, if_exists = run.name, "replace"
                output.note(f"submitted {run.name}; a change of its code starts it again")
                run = _followed(client, run, watched.look, seen)
            _rest(run, watched.look, seen)
            output.note(f"its code has changed: {run.name} starts again")
    except KeyboardInterrupt:
        if run is None or run.status in FINAL_RUN_STATUSES:
            return EXIT_INTERRUPTED
        return applying.interrupted(client, run, may_stop=True)


def _submitted(
    client: ControllerClient,
    watched: Watched,
    name: str | None,
    if_exists: str,
    parent: str | None,
) -> RunView:
    wish = {
        "configuration": watched.sent(client),
        "name": name,
        "ssh_keys": public_keys(os.environ, Path.home()),
        "if_exists": if_exists,
        "parent": parent,
    }
    data, _ = submit(client, wish, output.note)
    return decode(data, RunView)


def _followed(
    client: ControllerClient, run: RunView, look: Callable[[], bytes], seen: bytes
) -> RunView:
    """Follow the run until it ends or its code changes."""

    def changes(ended: threading.Event) -> bool:
        return wait_for_change(look, seen, ended, output.note)

    followed = follow.attach(client, run, until=changes)
    if followed.status in FINAL_RUN_STATUSES:
        output.note(f"{run.name}: {followed.status}: {why(followed)}")
    return followed


def _rest(run: RunView, look: Callable[[], bytes], seen: bytes) -> None:
    """Wait for a change if the run has ended, or could not be submitted."""
    if run.status in FINAL_RUN_STATUSES:
        output.note("waiting for a change of its code (Ctrl-C ends)")
    wait_for_change(look, seen, threading.Event(), output.note)
