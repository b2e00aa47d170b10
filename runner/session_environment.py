"""What a visitor's session (SSH) gets of its job's environment: what Fairlead tells the job, and
what the user set, never a secret.

Values of `env` are nobody else's either, so they lie in memory, where the job may change them: they
are read as any file of a job is. Secrets are for the job alone: a visitor finds their folder by
`FAIRLEAD_SECRETS_DIR`.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from runner.environment import Paths
from runner.schemas import SubmitRequest
from runner.scratch import usable_places
from runner.variables import PREFIX, variables

_NAME = "session-env.json"
_MOST_BYTES = 1 << 20


def for_session(request: SubmitRequest, working_dir: str, paths: Paths) -> dict[str, str]:
    """Wins over what the image sets. What a secret is named is left out."""
    told = variables(request, working_dir, paths)
    env = told | request.job.env
    env |= {name: value for name, value in told.items() if name.startswith(PREFIX)}
    return {name: value for name, value in env.items() if name not in request.secrets}


def in_memory(task: Path, name: str) -> list[Path]:
    """Where a file about this task would be in memory, the best place first; everybody who sees the
    task's folder finds the same."""
    about = task.stat()
    own = f"fairlead-{about.st_dev:x}-{about.st_ino:x}-{name}"
    return [place / own for place in usable_places()]


def write(task: Path, env: dict[str, str]) -> None:
    """Blocking. Raises OSError where nothing in memory can be written."""
    write_private(in_memory(task, _NAME), msgspec.json.encode(env))


def write_private(places: list[Path], data: bytes) -> Path:
    """In the first place that takes it. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    failed: OSError = FileNotFoundError("there is no writable tmpfs")
    for path in places:
        unfinished = path.with_name(f"{path.name}.new")
        try:
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
    """Blocking. Whatever lies in memory about this task."""
    with suppress(OSError):
        for anything in in_memory(task, "*"):
            for path in anything.parent.glob(anything.name):
                path.unlink(missing_ok=True)


def read(task: Path) -> dict[str, str]:
    """Blocking, but never for long. Nothing before the job is started, and nothing of a file that
    cannot be used or is somebody else's."""
    try:
        for path in in_memory(task, _NAME):
            if (raw := _read(path)) is not None:
                env = msgspec.json.decode(raw, type=dict[str, str])
                return {name: value for name, value in env.items() if _can_be_set(name, value)}
    except (OSError, msgspec.DecodeError):
        return {}
    return {}


def _read(path: Path) -> bytes | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            return None
        return file.read(_MOST_BYTES)


def _can_be_set(name: str, value: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name + value
