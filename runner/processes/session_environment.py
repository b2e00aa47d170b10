"""The environment of SSH sessions into a job: the job's, without its secrets.

The runner writes it when the job starts, and the SSH servers read it. It is in memory, never on a
disk.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from fairlead.wire.decoders import decoder_of
from fairlead.wire.job import SubmitRequest
from runner.processes.environment import DEFAULT_PATH, in_venv
from runner.processes.scratch import usable_folders
from runner.processes.variables import PREFIX, Paths, variables

_NAME = "session-env.json"
_MAX_BYTES = 1 << 20


def for_session(
    request: SubmitRequest, working_dir: str, paths: Paths, path: str | None = None
) -> dict[str, str]:
    """Return a session's variables, which override the image's; `path` is the image's PATH. Names
    of secrets are left out."""
    given = variables(request, working_dir, paths)
    env = given | request.job.env
    env |= {name: value for name, value in given.items() if name.startswith(PREFIX)}
    env |= in_venv(paths, env.get("PATH") or path or DEFAULT_PATH, env)
    return {name: value for name, value in env.items() if name not in request.secrets}


def in_memory(task: Path, name: str) -> list[Path]:
    """Return possible places in memory for a file about this task, the best first.

    Every process that sees the task's folder computes the same.
    """
    about = task.stat()
    own = f"fairlead-{about.st_dev:x}-{about.st_ino:x}-{name}"
    return [folder / own for folder in usable_folders()]


def write(task: Path, env: dict[str, str]) -> None:
    """Write the environment. Raises OSError where nothing in memory can be written. Blocking."""
    write_private(in_memory(task, _NAME), msgspec.json.encode(env))


def write_private(paths: list[Path], data: bytes) -> Path:
    """Write to the first place that accepts it. Raises OSError."""
    # All users write to a tmpfs such as /dev/shm: O_EXCL refuses a file or link that is there.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    failed: OSError = FileNotFoundError("there is no writable tmpfs")
    for path in paths:
        unfinished = path.with_name(f"{path.name}.new")
        try:
            # In a sticky folder another user's file stays (unlink(2): EPERM): then the next place.
            unfinished.unlink(missing_ok=True)
            with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
                file.write(data)
            unfinished.replace(path)
        except OSError as error:
            failed = error
        else:
            return path
    raise failed


def remove(task: Path) -> None:
    """Remove everything in memory about this task. Blocking."""
    with suppress(OSError):
        for anything in in_memory(task, "*"):
            for path in anything.parent.glob(anything.name):
                path.unlink(missing_ok=True)


def read(task: Path) -> dict[str, str]:
    """Return the environment; empty before the job is started, and for a file that is unusable or
    another user's.

    Blocking, but never for long.
    """
    try:
        for path in in_memory(task, _NAME):
            if (raw := _read(path)) is not None:
                env = decoder_of(dict[str, str]).decode(raw)
                return {name: value for name, value in env.items() if _can_be_set(name, value)}
    except (OSError, msgspec.DecodeError):
        return {}
    return {}


def _read(path: Path) -> bytes | None:
    # Others may write to the folder: a FIFO there would block the open (fifo(7)).
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        # Everybody may write to /dev/shm: another user could choose a visitor's environment.
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            return None
        return file.read(_MAX_BYTES)


def _can_be_set(name: str, value: str) -> bool:
    # Python starts no program with another name or value (ValueError).
    return bool(name) and "=" not in name and "\0" not in name + value
