"""A gateway's machine in three processes: HAProxy, Caddy and the agent, on free ports of the
loopback."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from gateway.direct import prepare
from gateway.haproxy import Paths, Ports, configuration
from tests.support.daemons import Daemon
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG, wait_until

_PROGRAMS = Path(sys.executable).parent


def haproxy_daemon(paths: Paths, ports: Ports) -> Daemon:
    """Return a HAProxy at these ports of the loopback."""
    for folder in (paths.maps, paths.certificates):
        folder.mkdir(parents=True)
    for file in (paths.slots, paths.guarded, paths.limits, paths.names, paths.shown):
        file.touch()
    with ThreadPoolExecutor() as thread:  # a test's event loop may not block
        thread.submit(prepare, paths).result()
    config = paths.maps / "haproxy.cfg"
    config.write_text(configuration(paths, ports=ports, addresses=("127.0.0.1",)))
    program = shutil.which("haproxy") or "/usr/sbin/haproxy"
    return Daemon([program, "-f", config], paths.maps / "haproxy.log", outlasts_tests=True)


def listens(path: Path) -> bool:
    """HAProxy and Caddy make the file of a socket a moment before they listen."""
    with suppress(OSError), closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.connect(str(path))
        return True
    return False


class GatewayMachine:
    """`socket` is where a controller on this machine reaches the agent; `hosts` below `domain` are
    asked by `get`, at this machine's loopback."""

    def __init__(self, folder: Path, domain: str) -> None:
        folder.mkdir(parents=True)
        self.domain = domain
        self.socket = folder / "agent.sock"
        self.http, self.https, challenges = free_port(), free_port(), free_port()
        self._folder = folder
        self.key = folder / "state" / "id_ed25519"
        admin = folder / "admin.sock"
        begin = folder / "begin.json"
        begin.write_text(
            json.dumps({"admin": {"listen": f"unix/{admin}", "origins": ["localhost"]}})
        )
        home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        caddy = shutil.which("caddy") or "/usr/bin/caddy"
        self.caddy = Daemon(
            [caddy, "run", "--config", begin], folder / "caddy.log", env=home, outlasts_tests=True
        )
        haproxy, traffic, data = folder / "haproxy", folder / "traffic.sock", folder / "state"
        self.haproxy = haproxy_daemon(
            Paths.of(haproxy, traffic, folder, data),
            Ports(http=self.http, https=self.https, challenges=challenges),
        )
        self._root = data / "caddy/internal/pki/authorities/local/root.crt"
        options: list[str | Path] = ["--data", data, "--socket", self.socket]
        options += ["--traffic", traffic, "--haproxy", haproxy, "--caddy-admin", admin]
        options += ["--https-port", str(self.https), "--challenge-port", str(challenges)]
        self._traffic = socket.socket(socket.AF_UNIX)
        self._traffic.bind(str(folder / "traffic.sock"))
        self._traffic.listen(1024)
        self.agent = Daemon(
            [_PROGRAMS / "fairlead", "gateway", "run", *options],
            folder / "agent.log",
            outlasts_tests=True,
            listening=self._traffic,
        )

    def start(self) -> None:
        self.caddy.spawn()
        self.caddy.wait_ready(lambda: listens(self._folder / "admin.sock"))
        self.start_haproxy()
        self.start_agent()

    def start_haproxy(self) -> None:
        self.haproxy.spawn()
        self.haproxy.wait_ready(lambda: listens(self._folder / "haproxy/admin.sock"))

    def start_agent(self) -> None:
        self.agent.spawn()
        self.agent.wait_ready(lambda: listens(self.socket))

    def close(self) -> None:
        self.agent.stop()
        self._traffic.close()
        self.haproxy.kill9()
        self.caddy.kill9()

    def trust(self) -> ssl.SSLContext:
        """A context that trusts Caddy's own authority, which is there once it made a
        certificate."""
        wait_until(self._root.exists, what="Caddy's root certificate")
        return ssl.create_default_context(cafile=str(self._root))

    def wait_until_shown(self, name: str) -> None:
        """Until a client gets a certificate for this service."""

        def shows() -> bool:
            with suppress(OSError), closing(self.connection(name, self.trust())):
                return True
            return False

        wait_until(shows, LONG, f"a certificate for {name}")

    def get(
        self,
        name: str,
        path: str = "/",
        headers: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None,
        timeout: float = LONG,
    ) -> tuple[int, str, http.client.HTTPMessage]:
        """Ask NAME.domain: by HTTPS with a context, else by HTTP."""
        connection = self.connection(name, context, timeout)
        with closing(connection):
            host = f"{name}.{self.domain}"
            connection.request("GET", path, headers={"Host": host, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers

    def dial(self, timeout: float = LONG) -> socket.socket:
        """Connect to where HAProxy listens for HTTPS."""
        return socket.create_connection(("127.0.0.1", self.https), timeout)

    def connection(
        self, name: str, context: ssl.SSLContext | None, timeout: float = LONG
    ) -> http.client.HTTPConnection:
        if context is None:
            return http.client.HTTPConnection("127.0.0.1", self.http, timeout=timeout)
        made = http.client.HTTPSConnection(
            "127.0.0.1", self.https, timeout=timeout, context=context
        )
        plain = self.dial(timeout)
        made.sock = context.wrap_socket(plain, server_hostname=f"{name}.{self.domain}")
        return made

    def fast_hosts(self) -> set[str]:
        """The hosts whose requests HAProxy sends straight to replicas."""
        maps = (f"show map {self._folder / 'haproxy'}/{name}.map" for name in ("slots", "guarded"))
        told = "\n".join(map(self._ask_haproxy, maps))
        return {line.split()[1].partition("|")[2] for line in told.splitlines() if line.strip()}

    def wait_until_fast(self, name: str) -> None:
        wait_until(lambda: f"{name}.{self.domain}" in self.fast_hosts(), LONG, f"{name} to be fast")

    @property
    def identity(self) -> Path:
        """The file of the gateway's certificate for nodes, with its key."""
        return self._folder / "state/direct.pem"

    def requests_at(self, kind: str) -> int:
        """Return how many requests HAProxy has sent to servers whose names begin with this: `d` to
        those that are reached directly, `r` to the others."""
        head, *rows = self._ask_haproxy("show stat -1 4 -1").strip().splitlines()
        place = head.split(",").index("stot")
        servers = [row.split(",") for row in rows if row.split(",")[1].startswith(kind)]
        return sum(int(cells[place]) for cells in servers)

    def admits(self, proof: str) -> bool:
        """Return whether the token with this SHA-256 passes the agent, at some service."""
        return f".{proof} " in self._ask_haproxy("show table doors")

    def _ask_haproxy(self, command: str) -> str:
        with closing(socket.socket(socket.AF_UNIX)) as admin:
            admin.connect(str(self._folder / "haproxy/admin.sock"))
            admin.sendall(f"{command}\n".encode())
            return "".join(iter(lambda: admin.recv(1 << 16).decode(), ""))
