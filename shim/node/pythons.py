"""The interpreters that the node keeps for jobs with `python`: uv brings each version once.

They lie in one folder, which containers get read-only: a job cannot change what another job runs.
uv comes with the containers' runtime, or with this program's own interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from shim.settings import Settings

log = logging.getLogger(__name__)
_LIMIT = 600.0
"""Seconds after which a download is given up."""
_REMEMBERED = 60.0
"""Seconds for which a failure is told again without another try."""
_READABLE = 0o755


class Pythons:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._one_at_a_time = asyncio.Lock()
        self._failed: dict[str, tuple[float, str]] = {}

    @property
    def folder(self) -> Path:
        return self._settings.data / "pythons"

    async def bring(self, version: str) -> str | None:
        """Bring an interpreter of this version, unless it is here. Return why that is impossible;
        None: it is here. Raises OSError when the folder cannot be made."""
        async with self._one_at_a_time:
            if self._is_here(version):
                return None
            until, problem = self._failed.get(version, (0.0, ""))
            if time.monotonic() < until:
                return problem
            self.folder.mkdir(parents=True, exist_ok=True)
            # The umask cuts the mode of mkdir(2), and jobs of any user read what is here.
            self.folder.chmod(_READABLE)
            found = await self._install(version)
            if found is not None:
                log.warning("Python %s cannot be brought: %s", version, found)
                self._failed[version] = (time.monotonic() + _REMEMBERED, found)
            return found

    def _is_here(self, version: str) -> bool:
        """Return whether it was brought before: uv moves a whole interpreter to its place."""
        end = "." if version.count(".") == 1 else "-"
        return any(self.folder.glob(f"cpython-{version}{end}*"))

    async def _install(self, version: str) -> str | None:
        uv = uv_of(self._settings.runtime)
        if uv is None:
            return "this node has no uv: renew its bundle"
        # A uv.toml of this machine must not change what is installed.
        options = ("--no-config", "--no-cache", "--no-progress")
        process = await asyncio.create_subprocess_exec(
            *(str(uv), "python", "install", "--no-bin", *options, version),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self._environment(),
            cwd=self.folder,
            # The unit's umask would hide the interpreters from the users of jobs.
            umask=0o022,
            # A group of its own: the kill at the limit takes what uv has started, too.
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_LIMIT):
                _, errors = await process.communicate()
        except TimeoutError:
            return f"the download took longer than {_LIMIT:.0f} s"
        finally:
            if process.returncode is None:
                # It can end between the look at its code and the signal.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return None if process.returncode == 0 else _in_one_line(errors)

    def _environment(self) -> dict[str, str]:
        env = {name: one for name, one in os.environ.items() if not name.startswith("UV_")}
        env |= {
            "HOME": str(self.folder),
            "UV_PYTHON_INSTALL_DIR": str(self.folder),
            "UV_PYTHON_INSTALL_REGISTRY": "0",
            "UV_PYTHON_PREFERENCE": "only-managed",
            "UV_HTTP_RETRIES": "1",
            # The runtime's uv is built with musl; these interpreters are for images with glibc.
            "UV_LIBC": "gnu",
        }
        if (mirror := self._settings.python_mirror) is not None:
            env["UV_PYTHON_INSTALL_MIRROR"] = mirror
        if (listing := self._settings.python_downloads) is not None:
            env["UV_PYTHON_DOWNLOADS_JSON_URL"] = listing
        return env


def uv_of(runtime: Path) -> Path | None:
    """Return the path of uv; None: there is none."""
    candidates = (runtime / "tools" / "uv", Path(sys.executable).with_name("uv"))
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def _in_one_line(errors: bytes) -> str:
    """Return the first error and its last cause."""
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines()]
    lines = [line.removeprefix("error: ").removeprefix("Caused by: ") for line in lines if line]
    if not lines:
        return "uv failed without a word"
    return (lines[0] if len(lines) == 1 else f"{lines[0]}: {lines[-1]}")[:400]
