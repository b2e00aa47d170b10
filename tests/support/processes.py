"""Our daemons and our command, run as their users run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.processes import reaper
from shim.node.cgroups import KernelTree
from shim.tasks.steps import leaves
from shim.wires.rules import Names
from tests.support.daemons import (
    Daemon,
    end_processes_that_mention,
    inside,
    processes_of,
)
from tests.support.ssh_daemon import free_port
from tests.support.waiting import wait_until

_UNVERIFIED = ssl._create_unverified_context()
_PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True)
class CommandResult:
    """The output of a finished `fairlead` command. `json` reads its standard output."""

    argv: Sequence[str]
    status: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        return json.loads(self.output)

    def succeeded(self) -> CommandResult:
        assert self.status == 0, (
            f"{self.argv} ended with {self.status}:\n{self.output}{self.errors}"
        )
        return self


def run_cli(
    *args: str | Path, env: Mapping[str, str] | None = None, timeout: float = 300
) -> CommandResult:
    """Run `fairlead ARGS` to its end. It blocks: from a coroutine use asyncio.to_thread."""
    argv = [str(_PROGRAMS / "fairlead"), *map(str, args)]
    done = subprocess.run(
        argv,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        timeout=timeout,
        check=False,
    )
    return CommandResult(
        argv, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode()
    )


NETWORKS = "FAIRLEAD_TEST_NETWORKS"
"""Names the networks of each shim on Docker, so that any suite can be run on either kind."""


class ShimProcess:
    """`fairlead-shim` with its data and sockets below one folder; `netns` names a network
    namespace to live in, `boot_id` a file to be taken for the kernel's, `program` another way to
    start it than this checkout's."""

    def __init__(
        self,
        folder: Path,
        engine: str,
        *options: str | Path,
        env: Mapping[str, str] | None = None,
        outlasts_tests: bool = False,
        netns: str | None = None,
        boot_id: Path | None = None,
        program: Sequence[str | Path] = (_PROGRAMS / "fairlead-shim",),
    ) -> None:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        self._folder = folder
        self.data = folder / "data"
        self.socket = folder / "run" / "shim.sock"
        self.socket.parent.mkdir()
        argv = [*inside(netns, boot_id), *program]
        argv += ["--data", self.data, "--socket", self.socket]
        if engine == "docker" and NETWORKS in os.environ:
            options = ("--networks", os.environ[NETWORKS], *options)
        self.daemon = Daemon(
            [*argv, "--engine", engine, *options],
            folder / "shim.log",
            env=env,
            outlasts_tests=outlasts_tests,
        )

    @property
    def pid(self) -> int:
        return self.daemon.pid

    def start(self) -> None:
        """Started and answering; a socket that a killed one left is not taken for an answer."""
        self.socket.unlink(missing_ok=True)
        self.daemon.spawn()
        self.daemon.wait_ready(self.socket.exists)

    def kill9(self) -> None:
        self.daemon.kill9()

    def restart(self) -> None:
        self.kill9()
        self.start()

    def stop(self) -> int:
        return self.daemon.stop()

    def close(self) -> None:
        """End the shim and what the process engine started, and let go of its memory."""
        self.kill9()
        for pid in self._reapers():
            with suppress(ProcessLookupError):
                os.kill(pid, reaper.END_ALL)
        wait_until(lambda: not self._reapers(), what="tasks to end")
        end_processes_that_mention(f"{self._folder}/")
        leaves.remove_strays(self.data / "leaves", KernelTree(), ())
        for record in (self.data / "records" / "node").glob("*"):
            for install_id in re.findall(r'"install_id":"([0-9a-f]{32})"', record.read_text()):
                for memory in Path("/dev/shm").glob(f"fairlead-{install_id}-*"):
                    shutil.rmtree(memory)
                # A killed one leaves its table, whose rules each packet of the machine would pass.
                table = ["nft", "delete", "table", "inet", Names(install_id).table]
                subprocess.run(table, capture_output=True, check=False)

    def _reapers(self) -> list[int]:
        """Of the tasks that are no containers."""
        found = processes_of(f"{self._folder}/")
        return [pid for pid, command in found.items() if reaper.__file__ in command]


class ControllerProcess:
    """`fairlead controller` on a free port of the loopback, and the command as its admin."""

    def __init__(
        self,
        folder: Path,
        *options: str | Path,
        outlasts_tests: bool = False,
        programs: Path = _PROGRAMS,
    ) -> None:
        folder.mkdir(parents=True)
        self.data = folder / "data"
        self.port = free_port()
        scheme = "https" if "--tls-cert" in options else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        argv: list[str | Path] = [programs / "fairlead", "controller", "--data", self.data]
        listen = ["--listen", f"127.0.0.1:{self.port}"]
        self.daemon = Daemon(
            [*argv, *listen, *options], folder / "controller.log", outlasts_tests=outlasts_tests
        )

    @property
    def pid(self) -> int:
        return self.daemon.pid

    @property
    def token(self) -> str:
        return (self.data / "admin-token").read_text().strip()

    @property
    def env(self) -> dict[str, str]:
        return {"FAIRLEAD_URL": self.url, "FAIRLEAD_TOKEN": self.token}

    @property
    def public_key(self) -> str:
        """The SSH key with which it reaches nodes, for `SshDaemon.authorize`."""
        return self.cli("node", "key").succeeded().output.strip()

    def start(self) -> None:
        self.daemon.spawn()
        self.daemon.wait_ready(self.is_healthy)

    def kill9(self) -> None:
        self.daemon.kill9()

    def restart(self) -> None:
        self.kill9()
        self.start()

    def stop(self) -> int:
        return self.daemon.stop()

    def close(self) -> None:
        self.kill9()

    def cli(self, *args: str | Path, timeout: float = 300) -> CommandResult:
        return run_cli(*args, env=self.env, timeout=timeout)

    def spawn_cli(self, *args: str | Path) -> subprocess.Popen[bytes]:
        """The command in the background, output in pipes; the caller waits for it and closes."""
        return subprocess.Popen(
            [str(_PROGRAMS / "fairlead"), *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.env},
        )

    def is_healthy(self) -> bool:
        health = f"{self.url}/v1/health"
        # Asked again: one that waits passes this on to a leader, which may hang.
        with (
            suppress(OSError),
            urllib.request.urlopen(health, timeout=10, context=_UNVERIFIED) as answer,
        ):
            return bool(answer.status == 200)
        return False
