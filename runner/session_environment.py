"""What a visitor's session (SSH) gets of its job's environment: what Fairlead tells the job, and
what the user set, never a secret.

It lies in the task's folder, where the job may change it, so that it is read as any file of a job
is. Secrets are for the job alone: a visitor finds their folder by `FAIRLEAD_SECRETS_DIR`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from runner.environment import Paths
from runner.schemas import SubmitRequest
from runner.variables import PREFIX, variables

FILE_NAME = "session-env.json"
_MOST_BYTES = 1 << 20


def for_session(request: SubmitRequest, working_dir: str, paths: Paths) -> dict[str, str]:
    """Wins over what the image sets. What a secret is named is left out."""
    told = variables(request, working_dir, paths)
    env = told | request.job.env
    env |= {name: value for name, value in told.items() if name.startswith(PREFIX)}
    return {name: value for name, value in env.items() if name not in request.secrets}


def write(task: Path, env: dict[str, str]) -> None:
    """Blocking. Raises OSError."""
    path = task / FILE_NAME
    unfinished = path.with_name(f".{FILE_NAME}.new")
    unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(unfinished, flags, 0o640), "wb") as file:
        file.write(msgspec.json.encode(env))
    unfinished.replace(path)


def read(task: Path) -> dict[str, str]:
    """Blocking, but never for long. Nothing before the job is started, and nothing of a file that
    cannot be used."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(task / FILE_NAME, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return {}
            env = msgspec.json.decode(file.read(_MOST_BYTES), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}
    return {name: value for name, value in env.items() if _can_be_set(name, value)}


def _can_be_set(name: str, value: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name + value
