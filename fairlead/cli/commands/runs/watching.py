"""`apply --watch`: a task starts again whenever its file or its code changes.

A job that runs starts again in its container, with what changed. Where that is not possible, the
live run is stopped with its grace and a new run of the same name is submitted. Both ways, what runs
is always one whole version of the code.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn, Protocol

import msgspec

from fairlead import settings
from fairlead.cli import follow, output
from fairlead.cli.commands.runs import attaching
from fairlead.cli.commands.runs.presence import Presence
from fairlead.cli.display import display
from fairlead.cli.errors import EXIT_INTERRUPTED, EXIT_USAGE, CliError
from fairlead.documents.runs import RunView
from fairlead.errors import ApiError, ConnectionLost, FairleadError, UsageError
from fairlead.files.ignored import is_left_by_tools
from fairlead.files.ssh_keys import public_keys
from fairlead.follow import follow_run, until_answered
from fairlead.model.statuses import FINAL_RUN_STATUSES, RunStatus
from fairlead.patience import Outages
from fairlead.rest import ControllerClient, decode
from fairlead.submission import (
    completed,
    given_variables,
    new_client_key,
    read_document,
    submit,
    with_code,
    with_code_digested,
    with_code_there,
    with_overrides,
)
from fairlead.summaries.progress import why

POLL_SECONDS = 0.25
REST = 10
"""A look at large code takes its time: nine tenths of the time nothing looks."""
SETTLE_SECONDS = 0.2
"""The least time for which a change stands still: editors and formatters write one file after
another."""
NOTHING = b""
"""What no look returns."""
Tell = Callable[[str], None]


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
    submitting = _Submitting(client, watched, name, if_exists, parent)
    presence = Presence(settings.client())

    def attach(run: RunView) -> Attachment:
        presence.at(run.id)
        return follow.Attachment(client, run, display())

    iterations = Iterations(
        look=watched.look,
        submit=submitting,
        start_again=submitting.again,
        changed=watched.changed,
        attach=attach,
        tell=output.note,
    )
    try:
        iterations.go_on()
    except KeyboardInterrupt:
        return _interrupted(client, iterations)
    finally:
        iterations.close()
        presence.leave()


def _interrupted(client: ControllerClient, iterations: Iterations) -> int:
    run = iterations.run
    if run is not None and iterations.is_submitting:
        # The controller may have accepted the next run, and its answer did not come.
        with suppress(FairleadError):
            run = client.run(run.name)
    if run is None or run.status in FINAL_RUN_STATUSES:
        return EXIT_INTERRUPTED
    if run.status is RunStatus.TERMINATING:
        output.note(f"{run.name} is being stopped; it does not start again")
        return EXIT_INTERRUPTED
    return attaching.interrupted(client, run, may_stop=True, also=_WAITS)


_WAITS = "; its container does not wait for changed files any more"


class Watched:
    """The file of a task, with all that is sent with it."""

    def __init__(self, file: Path, env: tuple[str, ...], override: tuple[str, ...]) -> None:
        self._file = file
        self._here = file.resolve().parent
        self._override = override
        self._variables = given_variables(env, os.environ)
        self._sent_at = time.time()

    def look(self) -> bytes:
        """Return what would be submitted now, with the digests of its code. Raises
        FairleadError."""
        document, configuration = self._read()
        name, environ = str(self._file), os.environ
        return as_seen(
            with_code_digested(configuration, self._here, name, environ, document, is_left_by_tools)
        )

    def sent(self, client: ControllerClient) -> object:
        """Upload the code; return the configuration to submit."""
        self._sent_at = time.time()
        document, configuration = self._read()
        name, environ = str(self._file), os.environ
        return with_code(
            client,
            configuration,
            self._here,
            name,
            environ,
            output.note,
            document,
            is_left_by_tools,
        )

    def changed(self) -> str:
        """Return which files were written since the code was last sent, in a few words."""
        # An editor may be writing the file now: the names are only for a message.
        with suppress(FairleadError, OSError):
            _, configuration = self._read()
            names = [str(self._file)] if written_since(self._file, self._sent_at) else []
            for place in local_paths(configuration):
                names += changed_below(self._here, place, self._sent_at)
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                return f"{names[0]}{more} changed"
        return _CODE_CHANGED

    def _read(self) -> tuple[Any, object]:
        document = with_overrides(read_document(self._file), self._override)
        configuration = completed(document, os.environ, self._variables)
        found = configuration if isinstance(configuration, dict) else {}
        if found.get("type") != "task" or "schedule" in found:
            raise CliError("--watch: it is for a task without a schedule", EXIT_USAGE)
        return document, configuration


_CODE_CHANGED = "its code has changed"


def local_paths(configuration: object) -> list[str]:
    """Return the paths here of a configuration's `repos` and `files`."""
    from fairlead.configuration.parse import parse  # 20 ms, after a change alone

    parsed = parse(configuration)
    return [
        *(one.local_path for one in parsed.repos or () if one.local_path is not None),
        *(one.local_path for one in parsed.files or ()),
    ]


def changed_below(base: Path, place: str, since: float) -> list[str]:
    """Return the files at `place`, or below it, that were written since then."""
    top = base / Path(place).expanduser()
    if not top.is_dir():
        return [place] if written_since(top, since) else []
    found = []
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(one for one in folders if one != ".git" and not is_left_by_tools(one))
        paths = (Path(folder, name) for name in sorted(names) if not is_left_by_tools(name))
        found += [os.path.relpath(path, base) for path in paths if written_since(path, since)]
    return found


def written_since(path: Path, since: float) -> bool:
    try:
        return path.lstat().st_mtime >= since
    except OSError:
        # vim moves a file away before it writes the new one (`backupcopy=no`).
        return False


def as_seen(configuration: object) -> bytes:
    return msgspec.json.encode(configuration, order="deterministic")


def wait_for_change(
    look: Callable[[], bytes], seen: bytes, ended: threading.Event, tell: Tell
) -> bytes | None:
    """Wait until two looks in a row see the same, and not what was `seen`; return what they see.
    Between two looks an editor may still write, so a look that fails is told once the next one
    fails too. Return None once `ended` is set."""
    before, problem, noted, pause = seen, "", "", POLL_SECONDS
    while not ended.wait(pause):
        began = time.monotonic()
        try:
            now = look()
        except (FairleadError, OSError) as error:
            if str(error) == problem != noted:
                noted = problem
                tell(problem)
            before, problem = seen, str(error)
            continue
        if now == before != seen:
            return now
        took = time.monotonic() - began
        pause = pause_after(took, changed=now != seen)
        before, problem, noted = now, "", ""
    return None


def pause_after(took: float, *, changed: bool) -> float:
    """Return the seconds from a look that took so long to the next one, which is soon if something
    has changed."""
    return max(SETTLE_SECONDS, took) if changed else max(POLL_SECONDS, (REST - 1) * took)


class Submitted(msgspec.Struct, frozen=True):
    """A run, and what a look saw if it saw what was sent. `is_kept`: a live run has the name.
    `in_place`: it is the same run as before, whose job has started again."""

    run: RunView
    seen: bytes
    is_kept: bool = False
    in_place: bool = False


class NotInPlace(Exception):
    """The job cannot start again in its container; the message says why."""


class Attachment(Protocol):
    def until_final(self, until: Callable[[threading.Event], bool]) -> RunView: ...
    def close(self) -> None: ...


class Iterations:
    """The runs of one `apply --watch`, one after another. `is_submitting`: it is not known whether
    `run` is still the newest one."""

    def __init__(
        self,
        *,
        look: Callable[[], bytes],
        submit: Callable[[str | None], Submitted],
        start_again: Callable[[RunView], Submitted],
        changed: Callable[[], str] = lambda: _CODE_CHANGED,
        attach: Callable[[RunView], Attachment],
        tell: Tell,
    ) -> None:
        self._look = look
        self._submit = submit
        self._start_again = start_again
        self._changed = changed
        self._attach = attach
        self._tell = tell
        self._attachment: Attachment | None = None
        self.run: RunView | None = None
        self.is_submitting = False

    def go_on(self) -> NoReturn:
        """Raises what ends the first submission, KeyboardInterrupt, ConnectionLost."""
        run, seen = self._first()
        while True:
            now = self._followed(seen)
            if now is None:
                now = self._rested(seen)
            self._tell(f"{self._changed()}: {run.name} starts again")
            seen = self._next(run.name, now)

    def close(self) -> None:
        if self._attachment is not None:
            self._attachment.close()

    def _first(self) -> tuple[RunView, bytes]:
        first = self._submit(None)
        name = first.run.name
        if first.is_kept:
            self._tell(f"kept {name}, which is already live; a change of its code replaces it")
        else:
            self._tell(f"submitted {name}; a change of its code starts it again")
        self._take(first.run)
        return first.run, first.seen

    def _next(self, name: str, now: bytes) -> bytes:
        """Start the run again with what is there `now`; return what counts as seen."""
        self.is_submitting = True
        try:
            # While the controller is away the code may change: each try sends what is there then.
            following = until_answered(Outages(self._tell), lambda: self._started(name))
        except ConnectionLost:
            raise
        except (FairleadError, OSError) as error:
            self.is_submitting = False
            self._tell(f"{error}; {name} was not started again")
            return seen_after(error, now)
        self.is_submitting = False
        if following.in_place:
            self.run = following.run
            return following.seen
        self._tell(f"submitted {name}; a change of its code starts it again")
        self.close()
        self._take(following.run)
        return following.seen

    def _started(self, name: str) -> Submitted:
        """Start the job again in its container, else replace the run."""
        if self.run is not None and self.run.status not in FINAL_RUN_STATUSES:
            try:
                return self._start_again(self.run)
            except NotInPlace as why:
                self._tell(f"{name} gets a new container: {why}")
        return self._submit(name)

    def _take(self, run: RunView) -> None:
        self.run = run
        self._attachment = self._attach(run)

    def _followed(self, seen: bytes) -> bytes | None:
        """Follow the live run until it ends, or its code changes; return what is there then."""
        assert self.run is not None
        assert self._attachment is not None
        if self.run.status in FINAL_RUN_STATUSES:
            return None
        changed: list[bytes] = []

        def changes(ended: threading.Event) -> bool:
            if (now := wait_for_change(self._look, seen, ended, self._tell)) is not None:
                changed.append(now)
            return bool(changed)

        self.run = self._attachment.until_final(changes)
        if self.run.status in FINAL_RUN_STATUSES:
            self._tell(f"{self.run.name}: {self.run.status}: {why(self.run)}")
        return changed[0] if changed else None

    def _rested(self, seen: bytes) -> bytes:
        if seen != NOTHING:
            self._tell("waiting for a change of its code (Ctrl-C ends)")
        now = wait_for_change(self._look, seen, threading.Event(), self._tell)
        assert now is not None
        return now


def seen_after(error: FairleadError | OSError, tried: bytes) -> bytes:
    """Return what counts as seen after a submission that failed. The controller's refusal holds
    until something changes. What could not be read here, because a file came or went meanwhile, is
    tried again as soon as it stands still, even as it was before."""
    return NOTHING if isinstance(error, (UsageError, CliError, OSError)) else tried


class _Submitting:
    """Sends the code and submits it; `replaced`: the name of the run that it replaces."""

    def __init__(
        self,
        client: ControllerClient,
        watched: Watched,
        name: str | None,
        if_exists: str,
        parent: str | None,
    ) -> None:
        self._client = client
        self._watched = watched
        self._name = name
        self._if_exists = if_exists
        self._parent = parent

    def __call__(self, replaced: str | None) -> Submitted:
        wish = {
            "name": replaced or self._name,
            "ssh_keys": public_keys(os.environ, Path.home()),
            "if_exists": "replace" if replaced else self._if_exists,
            "parent": self._parent,
            "starts_again": True,
            "client_key": new_client_key(),
        }

        def submitted(configuration: object) -> Submitted:
            body = {**wish, "configuration": configuration}
            data, kept = submit(self._client, body, output.note)
            return Submitted(run=decode(data, RunView), seen=as_seen(configuration), is_kept=kept)

        return with_code_there(lambda: self._watched.sent(self._client), submitted, output.note)

    def again(self, run: RunView) -> Submitted:
        """Start the run's job again in its container; return once it has started. Raises
        NotInPlace, FairleadError."""

        def ordered(configuration: object) -> tuple[object, RunView]:
            # The same request again starts nothing more.
            path, body = f"/v1/runs/{run.id}/start-again", {"configuration": configuration}
            try:
                data = self._client.post(path, body, repeatable=True)
                return configuration, decode(data, RunView)
            except ApiError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    raise NotInPlace("the controller is of an older version") from None
                if error.code not in _NOT_IN_PLACE:
                    raise
                raise NotInPlace(str(error)) from None

        configuration, accepted = with_code_there(
            lambda: self._watched.sent(self._client), ordered, output.note
        )
        lines = follow_run(self._client, accepted.id, Outages(output.note))
        started = until_begun(line.run for line in lines if line.run is not None)
        return Submitted(run=started, seen=as_seen(configuration), in_place=True)


_NOT_IN_PLACE = frozenset({"not_in_place", "ended", "ending"})


def until_begun(views: Iterable[RunView]) -> RunView:
    """Return the first view in which the start that was asked for last has begun. Raises
    NotInPlace when it never will."""
    for view in views:
        attempt = view.jobs[0].attempts[-1] if view.jobs and view.jobs[0].attempts else None
        starts = None if attempt is None else attempt.starts
        if view.status in FINAL_RUN_STATUSES or starts is None or not starts.asked:
            break
        if starts.refused is not None:
            raise NotInPlace(starts.refused)
        if starts.begun >= starts.asked:
            return view
    raise NotInPlace("its container has ended")
