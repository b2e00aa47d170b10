"""A real sshd with the tunnel user of a node, hardened by the very block that nodes get."""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import random
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.daemons import Daemon, inside, run

CHECKOUT = Path(__file__).parents[2]
TUNNEL_USER = "fairlead-tunnel"
JUMP_USER = "fairlead-jump"
GATEWAY_USER = "fairlead-gateway"
GROUP = "fairlead"
_FIRST_PORT, _LAST_PORT = 10240, 65535
_CLAIMS = os.open(
    Path(tempfile.gettempdir()) / f"fairlead-tests-ports-{os.getuid()}",
    os.O_RDWR | os.O_CREAT,
    0o600,
)
"""One for each user: nobody may write into what another has made."""
_CLAIMED: set[int] = set()
_TUNNEL_MATCH = "Match User fairlead\n"
_TUNNEL_KEYS = "/etc/ssh/fairlead_authorized_keys"
_GATEWAY_KEYS = "/var/lib/fairlead-gateway/authorized_keys"
_JUMP_KEYS = "/var/lib/fairlead-jump/authorized_keys"
HOST_KEY_TYPES = {"rsa": "2048", "ecdsa": "256", "ed25519": "256"}
"""And bits: what a stock Debian has, in its order."""
# sshd's own limits of 10 sessions and 10 logins at once drop connections of a test. StrictModes
# refuses keys below /tmp, where everybody may write.
_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key_rsa
HostKey {folder}/host_key_ecdsa
HostKey {folder}/host_key_ed25519
PidFile {folder}/sshd.pid
AllowUsers {user} {jump_user} {gateway_user}
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100:30:200
MaxSessions 1000
LogLevel VERBOSE
"""


class SshDaemon:
    """`authorize` lets a key in; `host_key` and `fingerprint` are what a client should pin; of each
    type there is one in `host_keys` and `fingerprints`.

    `netns` names a network namespace to live in, which has `address`. `begins_in`: seconds that it
    takes to begin, also after a reload, as on a slow machine. `port` None: a free one. `user`:
    the tunnel user's name. `within` is a command that runs sshd, such as `unshare`."""

    def __init__(
        self,
        folder: Path,
        address: str = "127.0.0.1",
        netns: str | None = None,
        *,
        begins_in: float = 0.0,
        port: int | None = None,
        user: str = TUNNEL_USER,
        within: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._address = address
        self.port = free_port() if port is None else port
        self.user = user
        self._authorized = folder / "authorized_keys"
        self.jump_keys = folder / "jump_keys"
        self.gateway_keys = folder / "gateway_keys"
        with _alone():
            make_tunnel_user()
            make_jump_user()
            make_gateway_user()
        self.host_keys = {kind: self._make_host_key(kind) for kind in HOST_KEY_TYPES}
        self.fingerprints = {
            kind: run(["ssh-keygen", "-l", "-f", self._host_key(kind)]).split()[1]
            for kind in HOST_KEY_TYPES
        }
        self.host_key, self.fingerprint = self.host_keys["ed25519"], self.fingerprints["ed25519"]
        self._authorized.touch(mode=0o644)
        config = folder / "sshd_config"
        main = _CONFIG.format(
            port=self.port,
            address=address,
            folder=folder,
            user=self.user,
            jump_user=JUMP_USER,
            gateway_user=GATEWAY_USER,
        )
        config.write_text(main + self._hardening())
        # sshd does not start without its folder for privilege separation.
        Path("/run/sshd").mkdir(exist_ok=True)
        # sshd executes itself again for each connection, and refuses to without an absolute path.
        program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or "/usr/sbin/sshd"
        if begins_in:
            program = str(_slow(program, begins_in, folder / "slow-sshd"))
        argv = [*inside(netns), *within, program, "-D", "-e", "-f", config]
        self._daemon = Daemon(argv, folder / "sshd.log", outlasts_tests=True)

    def _host_key(self, kind: str) -> Path:
        return self._folder / f"host_key_{kind}"

    def _make_host_key(self, kind: str) -> str:
        """Its public line."""
        private, size = self._host_key(kind), ["-b", HOST_KEY_TYPES[kind]]
        run(["ssh-keygen", "-q", "-t", kind, *size, "-N", "", "-C", "", "-f", private])
        return private.with_suffix(".pub").read_text().strip()

    def _hardening(self) -> str:
        """With a user and files of the tests' own: the machine may be a node as well."""
        text = (CHECKOUT / "cloud-init/sshd_fairlead.conf").read_text()
        for of_nodes, of_tests in (
            (_TUNNEL_MATCH, f"Match User {self.user}\n"),
            (_TUNNEL_KEYS, str(self._authorized)),
            (_JUMP_KEYS, str(self.jump_keys)),
            (_GATEWAY_KEYS, str(self.gateway_keys)),
        ):
            assert of_nodes in text
            text = text.replace(of_nodes, of_tests)
        return text

    def lending(self, folder: Path) -> tuple[str | Path, ...]:
        """Options of a shim that exposes ports to gateways, in this folder."""
        keys = ("--gateway-keys", self.gateway_keys)
        return ("--gateway-folder", folder, *keys, "--gateway-group", GATEWAY_USER)

    @property
    def log(self) -> str:
        return self._daemon.tail(200)

    def authorize(self, public_key: str) -> None:
        with self._authorized.open("a") as keys:
            keys.write(f"restrict,port-forwarding {public_key.strip()}\n")

    def start(self) -> None:
        self._daemon.spawn()
        self._daemon.wait_ready(self.greets)

    def host_key_file(self, kind: str = "ed25519") -> Path:
        return self._host_key(kind)

    def reload(self) -> None:
        """Do what `systemctl reload ssh` does: sshd executes itself again with the same id."""
        os.kill(self._daemon.pid, signal.SIGHUP)

    def stop(self) -> None:
        """The listener and, since they would go on without it, every connection. A killed one has
        neither."""
        if not self._daemon.is_alive():
            return
        connections = psutil.Process(self._daemon.pid).children(recursive=True)
        self._daemon.stop()
        for connection in connections:
            with suppress(psutil.NoSuchProcess):
                connection.kill()

    def is_alive(self) -> bool:
        return self._daemon.is_alive()

    def greets(self) -> bool:
        with suppress(OSError), socket.create_connection((self._address, self.port), 10) as client:
            return client.recv(4) == b"SSH-"
        return False


def _slow(program: str, seconds: float, script: Path) -> Path:
    """Make a program that begins sshd late. sshd executes its own first argument again at a reload,
    and with -R for each connection."""
    script.write_text(
        f'#!/bin/bash\n[[ " $* " == *" -R "* ]] || sleep {seconds:g}\nexec -a "$0" {program} "$@"\n'
    )
    script.chmod(0o755)
    return script


@contextmanager
def _alone() -> Iterator[None]:
    """Two that add the same user at once: one fails."""
    fcntl.lockf(_CLAIMS, fcntl.LOCK_EX, 1, 0)
    try:
        yield
    finally:
        fcntl.lockf(_CLAIMS, fcntl.LOCK_UN, 1, 0)


def make_tunnel_user() -> None:
    """A system user without a shell, whose password field is "*": sshd refuses locked ones."""
    try:
        grp.getgrnam(GROUP)
    except KeyError:
        run(["groupadd", "--system", GROUP])
    try:
        pwd.getpwnam(TUNNEL_USER)
    except KeyError:
        home = ["--no-create-home", "--home-dir", "/nonexistent"]
        shell = ["--shell", "/usr/sbin/nologin", "--password", "*"]
        run(["useradd", "--system", "--gid", GROUP, *home, *shell, TUNNEL_USER])


def make_jump_user() -> None:
    """In no group of ours: it opens the ports that its keys name, and nothing else."""
    try:
        pwd.getpwnam(JUMP_USER)
    except KeyError:
        home = ["--no-create-home", "--home-dir", "/nonexistent", "--gid", "nogroup"]
        shell = ["--shell", "/usr/sbin/nologin", "--password", "*"]
        run(["useradd", "--system", *home, *shell, JUMP_USER])


def make_gateway_user() -> None:
    """In a group of its own: it opens the sockets that are exposed to that group."""
    try:
        grp.getgrnam(GATEWAY_USER)
    except KeyError:
        run(["groupadd", "--system", GATEWAY_USER])
    try:
        pwd.getpwnam(GATEWAY_USER)
    except KeyError:
        home = ["--no-create-home", "--home-dir", "/nonexistent", "--gid", GATEWAY_USER]
        shell = ["--shell", "/usr/sbin/nologin", "--password", "*"]
        run(["useradd", "--system", *home, *shell, GATEWAY_USER])


def free_port() -> int:
    """Nobody else's while this process lives: not one of those that the kernel lends to whoever
    opens a connection, and claimed by a lock before other tests that run beside these."""
    own = _never_lent()
    for port in random.sample(own, min(len(own), 200)):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            fcntl.lockf(_CLAIMS, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            # The kernel grants a process its own lock again (fcntl(2)).
            if port not in _CLAIMED:
                _CLAIMED.add(port)
                return port
    raise OSError("no port is free")


def _never_lent() -> Sequence[int]:
    """A machine that lends nearly all of its ports leaves no better ones than those."""
    lent = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    first, last = map(int, lent.split())
    ranges = (range(_FIRST_PORT, first), range(max(last + 1, _FIRST_PORT), _LAST_PORT))
    largest = max(ranges, key=len)
    return largest if len(largest) > 1000 else range(_FIRST_PORT, _LAST_PORT)
