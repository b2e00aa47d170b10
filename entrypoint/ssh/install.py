"""Installs openssh-server with the image's own package manager, while the job runs.

It needs root in the container and a way to the distribution's mirror. Without either it fails with
a sentence that says so; it never delays the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path

from runner.processes import environment
from runner.processes.launch import find
from runner.processes.spawn import Children, start_in_thread

_LIMIT_SECONDS = 600.0
_TAIL = 4096
_MANAGERS: dict[str, tuple[str, ...]] = {
    "apt-get": (
        "apt-get update -q",
        "apt-get install -y -q --no-install-recommends openssh-server",
    ),
    "apk": ("apk add --no-cache openssh-server",),
    "dnf": ("dnf install -y --setopt=install_weak_deps=False openssh-server",),
    "microdnf": ("microdnf install -y openssh-server",),
    "yum": ("yum install -y openssh-server",),
    "zypper": ("zypper --non-interactive install --no-recommends openssh",),
}


class InstallFailed(Exception):
    """The installation failed; the message names the command and its last line."""


async def install(log: Path, children: Children) -> None:
    """Install it. All output goes to `log`. Raises InstallFailed."""
    if os.geteuid() != 0:
        raise InstallFailed("openssh-server cannot be installed: the container's user is not root")
    env = environment.inherited()
    env.setdefault("PATH", environment.DEFAULT_PATH)
    name = next((name for name in _MANAGERS if find(name, env, "/")), None)
    if name is None:
        known = ", ".join(_MANAGERS)
        raise InstallFailed(
            f"openssh-server cannot be installed: the image has no package manager ({known})"
        )
    # debconf asks questions else, and nobody would answer (debconf(7)).
    env["DEBIAN_FRONTEND"] = "noninteractive"
    try:
        async with asyncio.timeout(_LIMIT_SECONDS):
            for command in _MANAGERS[name]:
                await _run(command, env, log, children)
    except TimeoutError:
        raise InstallFailed(f"openssh-server was not installed in {_LIMIT_SECONDS:.0f} s") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallFailed(f"openssh-server could not be installed: {error}") from error


async def _run(command: str, env: dict[str, str], log: Path, children: Children) -> None:
    with log.open("ab") as output:
        argv = command.split()
        program = find(argv[0], env, "/") or argv[0]
        child = await start_in_thread(
            argv,
            children,
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            cwd="/",
            start_new_session=True,
        )
        try:
            status = (await child.wait()).code
        finally:
            if not child.ended.done():
                # The group: a package manager runs others, as apt-get runs dpkg.
                child.signal_group(9)
    if status != 0:
        raise InstallFailed(
            f"openssh-server could not be installed: `{command}` ended with status {status}: "
            f"{_last_line(log)} (does the container reach the image's package mirror?)"
        )


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"
    return "its log cannot be read"
