"""The embedded SSH server, in its own process, for images without sshd.

It accepts only the task's authorized keys, for any user that the image knows (without root, every
name is the present user). It offers all that OpenSSH offers a user: exec, shell with a terminal,
sftp, scp, local, remote and dynamic forwarding of ports and unix sockets, agent. It ends when no
user has been connected for a while; the port's owner starts it again.
"""

from __future__ import annotations

from entrypoint.ssh import hermetic  # isort: skip  (before asyncssh looks for the image's libraries)

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import asyncssh

from entrypoint.ssh.files import Files
from entrypoint.ssh.logins import Login, login_as
from entrypoint.ssh.sessions import Sessions
from entrypoint.ssh.settings import HOST_KEY_NAME, read_settings

__all__ = ["hermetic", "main", "serve"]

IDLE_SECONDS = 600.0
MAX_CONNECTIONS = 200
"""Any process that reaches the port may connect; only the memory of the job's own container pays
for it."""
_LOGIN_SECONDS = 30
_KEEPALIVE_SECONDS = 15
# asyncssh begins with chacha20-poly1305; with the CPU's AES instructions AES-GCM is faster.
_FAST_CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
)

_log = logging.getLogger(__name__)


class Visitors:
    """Counts connections, and reports when there have been none for long enough."""

    def __init__(self, idle_seconds: float) -> None:
        self.gone = asyncio.Event()
        self._idle_seconds = idle_seconds
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def came(self) -> bool:
        """Count a connection; return False when there are too many."""
        self._count += 1
        if self._timer is not None:
            self._timer.cancel()
        return self._count <= MAX_CONNECTIONS

    def left(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._idle_seconds, self.gone.set)


class Connection(asyncssh.SSHServer):
    def __init__(self, keys: frozenset[bytes], visitors: Visitors, notice: str | None) -> None:
        self._keys = keys
        self._visitors = visitors
        self._notice = notice
        self._login: Login | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._conn = conn
        if not self._visitors.came():
            # asyncssh has no bound of its own, such as sshd's MaxStartups (sshd_config(5)).
            conn.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._visitors.left()

    def begin_auth(self, username: str) -> bool:
        self._login = login_as(username)
        self._conn.set_extra_info(login=self._login)
        if self._notice is not None:
            self._conn.send_auth_banner(f"{self._notice}\n")
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return self._login is not None and key.public_data in self._keys

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        return True

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        return True

    def unix_connection_requested(self, dest_path: str) -> bool:
        return True

    def unix_server_requested(self, listen_path: str) -> bool:
        return True


async def serve(
    task: Path, listener: socket.socket, notice: str | None = None, idle: float = IDLE_SECONDS
) -> None:
    """Serve until no user has been connected for `idle` seconds, or SIGTERM.

    Raises SettingsUnusable, OSError and asyncssh's errors about keys.
    """
    settings = read_settings(task)
    if settings is None:
        return
    keys = frozenset(asyncssh.import_public_key(k).public_data for k in settings.authorized_keys)
    visitors = Visitors(idle)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, visitors.gone.set)
    sessions = Sessions(task)
    acceptor = await asyncssh.listen(
        sock=listener,
        config=None,
        server_factory=lambda: Connection(keys, visitors, notice),
        server_host_keys=[asyncssh.read_private_key(task / HOST_KEY_NAME)],
        process_factory=sessions.run,
        sftp_factory=Files,
        allow_scp=True,
        encoding=None,
        agent_forwarding=True,
        x11_forwarding=False,
        compression_algs=None,
        encryption_algs=_FAST_CIPHERS,
        # Without this, asyncssh looks the machine's own name up in DNS for GSSAPI.
        gss_host=None,
        login_timeout=_LOGIN_SECONDS,
        keepalive_interval=_KEEPALIVE_SECONDS,
    )
    await visitors.gone.wait()
    acceptor.close()
    await acceptor.wait_closed()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("fairlead-ssh", description="Serves SSH into this container.")
    add = parser.add_argument
    add("--task", type=Path, required=True, help="the task's folder")
    add("--listener", type=int, required=True, help="descriptor of a listening socket")
    add(
        "--idle",
        type=float,
        default=IDLE_SECONDS,
        help="seconds without visitors until the server ends",
    )
    add("--notice", help="shown to every user who logs in")
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    with socket.socket(fileno=given.listener) as listener:
        listener.setblocking(False)
        asyncio.run(serve(given.task, listener, given.notice, given.idle))
    return 0


if __name__ == "__main__":
    sys.exit(main())
