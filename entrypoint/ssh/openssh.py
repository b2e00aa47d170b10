"""The image's own sshd, one process for each connection, with Fairlead's configuration.

The image's configuration does not count: only the task's keys give access. An sshd that refuses
this configuration, or cannot work in this container, is not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from entrypoint.ssh.logins import kept_path, locked_users
from entrypoint.ssh.settings import HOST_KEY_NAME, SshSettings
from runner.processes import environment, session_environment
from runner.processes.spawn import Children, start_in_thread

_FOLDER = Path("/run/fairlead-ssh")
_FALLBACK = "sshd"
_PROGRAMS = ("/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd", "/usr/bin/sshd")
# sshd ends without its empty folder, which a distribution's unit makes at boot.
_PRIVILEGE_SEPARATION = (Path("/run/sshd"), Path("/var/empty"))
_CHECK_SECONDS = 10.0
_SET_BY_SSHD = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "MAIL", "TERM"})
_MAX_OUTPUT = 4096
_CONFIG_NAME = "sshd_config"
_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
UseDNS no
PermitRootLogin prohibit-password
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding yes
AllowStreamLocalForwarding yes
AllowAgentForwarding yes
X11Forwarding no
PermitTunnel no
PermitUserEnvironment no
PrintMotd no
LoginGraceTime 30
ClientAliveInterval 15
AcceptEnv *
Subsystem sftp internal-sftp
"""


class NotUsable(Exception):
    """The image's sshd cannot be used; the message says why."""


def find() -> str | None:
    return next((program for program in _PROGRAMS if os.access(program, os.X_OK)), None)


class OpenSshServer:
    def __init__(self, program: str, folder: Path, task: Path, children: Children) -> None:
        self._program = program
        self._folder = folder
        self._task = task
        self._log = task / "ssh.log"
        self._children = children
        self._environment = environment.inherited()

    async def answer(self, listener: socket.socket) -> None:
        argv = self._argv()
        # The visitor may have left again before accept(2).
        with contextlib.suppress(BlockingIOError, ConnectionError):
            connection, _ = listener.accept()
            with connection, self._log.open("ab") as log:
                await start_in_thread(
                    # -e: a container has no system log for its messages (sshd(8)).
                    [*argv, "-i", "-e"],
                    self._children,
                    stdin=connection,
                    stdout=connection,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )

    def _argv(self) -> list[str]:
        """Return the command line, with a new configuration for each visitor. Raises OSError.

        The job, whose environment a session has, may have begun since the last one.
        """
        text = _CONFIG.format(folder=self._folder)
        variables = self._environment | session_environment.read(self._task)
        try:
            paths = session_environment.in_memory(self._task, _CONFIG_NAME)
            content = (text + set_env(variables | kept_path(variables))).encode()
            config = session_environment.write_private(paths, content)
        except OSError:  # without what may not be on a disk
            config = self._folder / _CONFIG_NAME
            _write_file(config, text + set_env(self._environment), 0o600)
        return [self._program, "-f", str(config)]

    async def check(self) -> None:
        """Check that it works. Raises NotUsable, OSError."""
        await _check(self._argv(), self._children, self._environment)


async def prepare(task: Path, settings: SshSettings, children: Children) -> OpenSshServer:
    """Return the image's sshd as a server. Raises NotUsable."""
    program = find()
    if program is None:
        raise NotUsable("the image has no sshd")
    if os.geteuid() != 0:
        raise NotUsable("the image's sshd needs root")
    if locked := locked_users():
        raise NotUsable(f"the image's sshd would refuse {locked[0]}, whose password is locked")
    try:
        folder = _folder(task)
        _write_keys(folder, task, settings)
        server = OpenSshServer(program, folder, task, children)
        await server.check()
    except OSError as error:
        # The image may have a root that cannot be written, or an sshd for another machine.
        raise NotUsable(f"the image's sshd cannot be set up: {error}") from error
    return server


def set_env(variables: Mapping[str, str]) -> str:
    """Return the line of sshd_config that gives sessions these variables, except those that its
    syntax cannot hold (quotes, line breaks)."""
    words = [
        f'"{name}={value}"'
        for name, value in variables.items()
        if name not in _SET_BY_SSHD
        and (name + value).isprintable()
        and not set('"\\') & set(name + value)
    ]
    return f"SetEnv {' '.join(words)}\n" if words else ""


def _folder(task: Path) -> Path:
    """Return a folder for authorized keys: sshd reads them as the visitor's user, who cannot enter
    the task's folder."""
    for folder in (_FOLDER, task / _FALLBACK):
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            # mkdir(2) takes the umask away from the mode.
            folder.chmod(0o755)
        except OSError:
            # A read-only root file system (`read_only_root`): EROFS.
            continue
        return folder
    raise NotUsable(f"neither {_FOLDER} nor the task's folder can be written")


def _write_keys(folder: Path, task: Path, settings: SshSettings) -> None:
    _write_file(folder / "host_key", (task / HOST_KEY_NAME).read_text(), 0o600)
    keys = "".join(f"{key}\n" for key in settings.authorized_keys)
    _write_file(folder / "authorized_keys", keys, 0o644)
    for path in _PRIVILEGE_SEPARATION:
        with contextlib.suppress(OSError):
            # sshd(8) ends at once without its empty folder for privilege separation.
            path.mkdir(mode=0o755, exist_ok=True)


def _write_file(path: Path, text: str, mode: int) -> None:
    path.unlink(missing_ok=True)
    # O_EXCL: a link that somebody puts there meanwhile is not followed (open(2)).
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        # The umask has cut the mode of open(2).
        os.fchmod(descriptor, mode)
        file.write(text)


async def _check(argv: list[str], children: Children, inherited: Mapping[str, str]) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb", 0) as output:
        os.set_blocking(read, False)
        try:
            child = await start_in_thread(
                [*argv, "-t"],
                children,
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                env=dict(inherited),
            )
        finally:
            os.close(write)
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                status = (await child.wait()).code
        except TimeoutError:
            raise NotUsable("the image's sshd does not check its configuration") from None
        finally:
            child.kill()
        if status != 0:
            lines = (output.read(_MAX_OUTPUT) or b"").decode(errors="replace").strip().splitlines()
            raise NotUsable(f"the image's sshd refuses: {lines[-1] if lines else status}")
