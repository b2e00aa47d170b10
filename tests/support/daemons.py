"""Child processes of a test: started by name, watched and ended by their pid."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.leaks import outlasting, outlasts
from tests.support.waiting import LONG, wait_until

_COMMAND_SECONDS = 300.0


class DaemonFailed(AssertionError):
    """A daemon ended or did not become ready; the text holds the end of its log."""


class Daemon:
    """One process that is started, killed and started again with the same arguments."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        outlasts_tests: bool = False,
        listening: socket.socket | None = None,
    ) -> None:
        """`listening` is given to it as systemd gives the sockets of a .socket unit."""
        self.argv = [str(part) for part in argv]
        self._listening = listening
        if listening is not None:
            # LISTEN_PID must be the daemon's pid (sd_listen_fds(3)): exec keeps the shell's.
            given = f'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&{listening.fileno()}'
            self.argv = ["bash", "-c", given, "bash", *self.argv]
        self.log = log
        self.env = {**os.environ, **(env or {})}
        self._outlasts_tests = outlasts_tests
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.argv[0]} was not started"
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        assert not self.is_alive(), f"{self.argv[0]} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                # Ctrl-C goes to the terminal's process group, but pytest ends its daemons itself.
                start_new_session=True,
                pass_fds=() if self._listening is None else (self._listening.fileno(),),
            )
        if self._outlasts_tests:
            outlasting.add(str(self.pid))
            if self._listening is not None:
                outlasts(self._listening.fileno())

    def wait_ready(self, ready: Callable[[], object], timeout: float = LONG) -> None:
        def ready_or_dead() -> object:
            return not self.is_alive() or ready()

        try:
            wait_until(ready_or_dead, timeout)
        except TimeoutError:
            self.kill9()
            raise DaemonFailed(
                f"not ready within {timeout} s: {self.argv}\n{self.tail()}"
            ) from None
        if not self.is_alive():
            raise DaemonFailed(f"ended at once: {self.argv}\n{self.tail()}")

    def wait(self, timeout: float = LONG) -> int:
        assert self._process is not None
        return self._process.wait(timeout)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill9(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, timeout: float = LONG) -> int:
        """SIGTERM; the exit status. Raises DaemonFailed when it does not end in time."""
        assert self._process is not None
        if self.is_alive():
            self.signal(signal.SIGTERM)
        try:
            return self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise DaemonFailed(f"ignored SIGTERM: {self.argv}\n{self.tail()}") from None

    def tail(self, lines: int = 40) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float = _COMMAND_SECONDS,
    cwd: Path | None = None,
) -> str:
    """The command's output. Raises DaemonFailed with all it said when it fails."""
    command = [str(part) for part in argv]
    done = subprocess.run(
        command,
        input=stdin,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
        check=False,
    )
    output = done.stdout.decode(errors="replace")
    if done.returncode:
        raise DaemonFailed(f"{command} ended with {done.returncode}:\n{output}")
    return output


def inside(netns: str | None, boot_id: Path | None = None) -> list[str | Path]:
    """The beginning of a command line that runs in the network namespace of that name, on a machine
    that is called like it; the file `boot_id` holds what it finds to be the kernel's boot id."""
    if netns is None:
        return []
    begin, apart = 'echo "$0" > /proc/sys/kernel/hostname', ["--uts"]
    if boot_id is not None:
        begin += f"; mount --bind {shlex.quote(str(boot_id))} /proc/sys/kernel/random/boot_id"
        apart.append("--mount")
    words = ["sh", "-ec", f'{begin}; exec "$@"', netns]
    return ["nsenter", f"--net=/run/netns/{netns}", "unshare", *apart, *words]


def processes_that_mention(text: str) -> list[int]:
    """Pids whose command line holds `text`, such as a test's own folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def end_processes_that_mention(text: str) -> None:
    for pid in processes_that_mention(text):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes_that_mention(text), what=f"processes of {text} to end")


def processes_of(*names: str) -> dict[int, str]:
    """Living processes whose command line, cgroup or working directory holds one of the names, such
    as a task's or a container's id; what each executes, for people."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if not entry.name.isdigit() or not any(
                name.encode() in _about(entry) for name in names
            ):
                continue
            # A program's name may hold brackets and spaces (proc(5)): the last bracket ends it.
            if (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX":
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry.name)] = command.decode(errors="replace")
    return found


def _about(process: Path) -> bytes:
    told = (process / "cmdline").read_bytes() + (process / "cgroup").read_bytes()
    with suppress(OSError):
        told += os.readlink(process / "cwd").encode()
    return told
