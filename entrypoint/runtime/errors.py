"""The errors of a build, with sentences for the person who runs it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PAUSES = (5.0, 20.0)


class BuildError(Exception):
    """The runtime could not be built; the message says what to do."""


def run(
    argv: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Return the command's output. Raises BuildError, with its last lines, when it fails or is
    missing."""
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise BuildError(f"{command[0]} is missing: run ./dev runtime, which installs it") from None
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise BuildError(f"{' '.join(command[:3])} … ended with {done.returncode}:\n{tail}")
    return done.stdout


def fetch(argv: Sequence[str | Path], *, cwd: Path | None = None) -> str:
    """Run a command that uses the network as `run` does, and try it again when it fails."""
    for pause in _PAUSES:
        try:
            return run(argv, cwd=cwd)
        except BuildError:
            time.sleep(pause)
    return run(argv, cwd=cwd)
