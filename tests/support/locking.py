"""Renews the lists of pinned packages: what the commands need, what tests need beside that, and
what goes into the hermetic runtime.

The lists of node and runtime are resolved for one platform and without markers, since they are
installed by a Python of another version than the one they are for; they follow the versions of our
own list.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]
_OPTIONS = [
    "--upgrade",
    "--quiet",
    "--generate-hashes",
    "--no-header",
    "--no-annotate",
    "--no-emit-index-url",
    "--no-emit-find-links",
]
_UNIVERSAL = ["-", "--universal", "--python-version=3.11"]
_PROJECTS = ("pyproject.toml", "daemons/pyproject.toml")
_NEEDED_TO_RUN = ("shim", "runner", "controller", "build")
_NEEDED = (*_NEEDED_TO_RUN, "aws", "gcp", "gateway", "docs", "dev")
_ONE_PLATFORM = (
    *("-c", "requirements.lock"),
    *("--python-version=3.11", "--python-platform=x86_64-manylinux_2_28"),
)
_OF_RUNTIME = ("entrypoint/runtime/wheels", "entrypoint/runtime/tools")


def main() -> None:
    _compile(_UNIVERSAL, "requirements.lock", given=_needs_of(_NEEDED_TO_RUN))
    ours = ["-c", "requirements.lock"]
    _compile([*_UNIVERSAL, *ours], "requirements-dev.lock", given=_needs_of(_NEEDED))
    for wheels in _OF_RUNTIME:
        _compile([f"{wheels}.in", *_ONE_PLATFORM], f"{wheels}.lock")
    _compile(["-", *_ONE_PLATFORM], "requirements-node.lock", given=_needs_of_agents())


def _needs_of(extras: Sequence[str]) -> str:
    """Return what the client and these extras need, one a line."""
    client, extra = _projects()
    return "\n".join([*client, *(need for name in extras for need in extra[name])])


def _needs_of_agents() -> str:
    """Return what a node needs, one a line: without what only a user's commands need."""
    client, extra = _projects()
    own = [need for need in client if need.startswith("msgspec")]
    return "\n".join([*own, *extra["shim"], *extra["runner"]])


def _projects() -> tuple[list[str], dict[str, list[str]]]:
    """Return what the client needs, and the extras of both projects."""
    client, daemons = (
        tomllib.loads((_CHECKOUT / name).read_text())["project"] for name in _PROJECTS
    )
    return client["dependencies"], {
        **client["optional-dependencies"],
        **daemons["optional-dependencies"],
    }


def _compile(arguments: list[str], lock: str, *, given: str | None = None) -> None:
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", *arguments, *_OPTIONS, "-o", lock],
        cwd=_CHECKOUT,
        env={**os.environ, "UV_SYSTEM_CERTS": "true"},
        input=given,
        text=True,
        check=True,
    )


if __name__ == "__main__":
    main()
