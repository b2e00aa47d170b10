"""Certificates of a gateway from an ACME authority: a second Caddy, in a network of their own.

The gateway's Caddy gets exactly the configuration that the agent sets. The authority asks it
through HAProxy, which shows what it got.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509

from fairlead.wire.gateway import Certificate
from gateway import caddy
from gateway.certificates import HostCertificates
from gateway.haproxy import Haproxy, Limits, Paths, Ports
from tests.e2e.gateways.test_gateway import as_admin, fields_of
from tests.support.certificates import Authority
from tests.support.daemons import Daemon, run
from tests.support.gateway import GatewayMachine, haproxy_daemon, listens
from tests.support.lab import RunLab
from tests.support.processes import CommandResult
from tests.support.waiting import LONG, eventually, wait_until

pytestmark = pytest.mark.e2e
DOMAIN = "apps.test"
_ASK = """
import http.client, socket, ssl, sys
host, root = sys.argv[1:]
context = ssl.create_default_context(cafile=root)
plain = socket.create_connection(("127.0.0.1", 443), 60)
connection = http.client.HTTPSConnection("127.0.0.1")
connection.sock = context.wrap_socket(plain, server_hostname=host)
connection.request("GET", "/", headers={"Host": host})
print(connection.getresponse().read().decode())
"""


class Town:
    """A network namespace with both Caddys; there these names lead to its loopback."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        run(["ip", "netns", "add", name])
        run(["ip", "-n", name, "link", "set", "lo", "up"])
        self._names = Path("/etc/netns") / name
        self._names.mkdir(parents=True)
        hosts = f"localhost acme.test known.{DOMAIN} other.{DOMAIN}"
        (self._names / "hosts").write_text(f"127.0.0.1 {hosts}\n")
        self.root = folder / "ca/caddy/pki/authorities/local/root.crt"
        self.admin = folder / "gateway/admin.sock"
        self.storage = folder / "kept"
        self.traffic = folder / "traffic.sock"
        self.paths = Paths.of(folder / "haproxy", self.traffic, folder, folder)
        balancer = haproxy_daemon(self.paths, Ports())
        balancer.argv = [*map(str, self.here()), *balancer.argv]
        balancer.spawn()
        balancer.wait_ready(lambda: listens(self.paths.admin))
        self._daemons = [
            balancer,
            self._caddy("ca", _authority(folder / "ca/admin.sock")),
            self._caddy(
                "gateway",
                {"admin": {"listen": f"unix/{self.admin}", "origins": ["localhost"]}},
            ),
        ]

    def _caddy(self, name: str, configuration: object) -> Daemon:
        home = self._folder / name
        home.mkdir(parents=True)
        (home / "caddy.json").write_text(json.dumps(configuration))
        paths = {"HOME": home, "XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home}
        program = shutil.which("caddy") or "/usr/bin/caddy"
        daemon = Daemon(
            [*self.here(), program, "run", "--config", home / "caddy.json"],
            home / "caddy.log",
            env={key: str(value) for key, value in paths.items()},
        )
        daemon.spawn()
        daemon.wait_ready(lambda: listens(home / "admin.sock"))
        return daemon

    def here(self) -> list[str | Path]:
        return ["ip", "netns", "exec", self.name]

    def ask(self, host: str) -> subprocess.CompletedProcess[str]:
        """Ask the gateway by HTTPS, with the authority's root alone trusted."""
        command = [*self.here(), sys.executable, "-c", _ASK, host, self.root]
        return subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )

    def close(self) -> None:
        for daemon in self._daemons:
            daemon.kill9()
        run(["ip", "netns", "delete", self.name])
        shutil.rmtree(self._names)


def _authority(admin: Path) -> dict[str, object]:
    handle = {"handler": "acme_server", "host": "acme.test", "ca": "local"}
    server = {
        "listen": ["127.0.0.1:9443"],
        "routes": [{"match": [{"host": ["acme.test"]}], "handle": [handle]}],
        "automatic_https": {"disable_redirects": True},
    }
    own = {"subjects": ["acme.test"], "issuers": [{"module": "internal"}]}
    return {
        "admin": {"listen": f"unix/{admin}", "origins": ["localhost"]},
        "apps": {
            "http": {"http_port": 18080, "https_port": 9443, "servers": {"acme": server}},
            "tls": {"automation": {"policies": [own]}},
            "pki": {"certificate_authorities": {"local": {"install_trust": False}}},
        },
    }


@pytest.fixture
def town(testbed_folder: Path, numbers: Iterator[int]) -> Iterator[Town]:
    number = next(numbers)
    made = Town(f"flacme{os.getpid()}-{number}", testbed_folder / f"town{number}")
    yield made
    made.close()


@pytest.fixture
async def agent(town: Town) -> AsyncIterator[HostCertificates]:
    """Answers requests, and gives HAProxy the certificates that Caddy got."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.headers['X-Forwarded-Proto']} at {request.host}")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(town.traffic)).start()
    made = HostCertificates(town.paths.certificates, Haproxy(town.paths), lambda: None)
    keeping = asyncio.create_task(made.keep())
    yield made
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await runner.cleanup()


async def test_an_authority_gives_each_host_a_certificate_and_another_name_has_none(
    town: Town, agent: HostCertificates
) -> None:
    certificate = Certificate(
        email="ops@apps.test",
        directory="https://acme.test:9443/acme/local/directory",
        directory_ca=str(town.root),
    )
    host = f"known.{DOMAIN}"
    await Haproxy(town.paths).set_limits(Limits(has_challenges=True))
    config = caddy.configuration(
        certificate,
        [host],
        admin=str(town.admin),
        storage=town.storage,
        challenges=Ports().challenges,
    )
    await caddy.apply(config, str(town.admin))
    agent.update([host], town.storage)
    await eventually(lambda: agent.found() and agent.found()[0].error is None)
    assert "CN=Caddy Local Authority" in (agent.found()[0].issuer or "")
    answered = await asyncio.to_thread(town.ask, host)
    assert answered.stdout == f"https at {host}\n", answered.stderr
    refused = await asyncio.to_thread(town.ask, f"other.{DOMAIN}")
    assert refused.returncode != 0
    assert "SSL" in refused.stderr


@pytest.fixture
def second_gateway(
    lab: RunLab, testbed_folder: Path, numbers: Iterator[int]
) -> Iterator[GatewayMachine]:
    """No controller knows it yet."""
    made = GatewayMachine(testbed_folder / f"gateway{next(numbers)}", "files.test")
    made.start()
    yield made
    lab.end_runs()
    lab.cli("gateway", "remove", "own")
    made.close()


def test_a_certificate_from_files_is_checked_served_and_followed_when_it_is_renewed(
    lab: RunLab, second_gateway: GatewayMachine, tmp_path: Path
) -> None:
    gateway, authority = second_gateway, Authority(tmp_path)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    serial = authority.issue(cert, key, "*.files.test")
    file = tmp_path / "gateway.yaml"

    def apply(certificate: object) -> CommandResult:
        fields = {"type": "gateway", "name": "own", "domain": "files.test"}
        own = {"local_socket": str(gateway.socket), "certificate": certificate}
        file.write_text(json.dumps({**fields, **own}))
        return lab.cli("apply", "-f", file)

    refused = apply({"cert": str(cert), "key": str(tmp_path / "none.pem")})
    assert refused.status != 0
    assert "certificate.key" in refused.errors
    assert "No such file or directory" in refused.errors
    apply({"cert": str(cert), "key": str(key)}).succeeded()
    lab.submit("held", **fields_of(gateway="own"))
    context = ssl.create_default_context(cafile=str(authority.file))
    wait_until(lambda: gateway.get("held", headers=as_admin(lab), context=context)[0] == 200)
    assert _serial(gateway, context) == serial
    (shown,) = wait_until(lambda: lab.get("/v1/gateways/own")["certificates"], LONG, "the look")
    assert (shown["host"], shown["issuer"]) == ("held.files.test", "CN=test authority")
    renewed = authority.issue(cert, key, "*.files.test", days=30)
    wait_until(lambda: _serial(gateway, context) == renewed, LONG, "the renewed certificate")
    apply("none").succeeded()
    assert gateway.get("held", headers=as_admin(lab))[0] == 200
    in_use = lab.cli("gateway", "remove", "own")
    assert (in_use.status != 0, "used by held" in in_use.errors) == (True, True)


def _serial(gateway: GatewayMachine, context: ssl.SSLContext) -> int:
    with (
        gateway.dial() as plain,
        context.wrap_socket(plain, server_hostname=f"held.{gateway.domain}") as secure,
    ):
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number
