"""A service that a gateway reaches without SSH: a real HAProxy on each end."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import pinned_certificates
from tests.e2e.gateways.conftest import AddNode
from tests.e2e.gateways.test_fast_path import load_of, public
from tests.e2e.gateways.test_gateway import trusted
from tests.e2e.services.test_proxy import APP
from tests.support.daemons import Daemon
from tests.support.gateway import GatewayMachine, listens
from tests.support.lab import RunLab
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e
CLIENTS = 3
EVERYWHERE = [line.replace('host="127.0.0.1"', 'host="0.0.0.0"') for line in APP]
"""An app that listens at its container's address, too."""


class DirectEnd:
    """The HAProxy of a node, whose files the shim has written in `folder`; it listens at the
    loopback alone."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        written = (folder / "haproxy.cfg").read_text()
        own = folder / "of-test.cfg"
        own.write_text(
            re.sub(r" *bind \[::\].*\n", "", written).replace("bind *:", "bind 127.0.0.1:")
        )
        program = shutil.which("haproxy") or "/usr/sbin/haproxy"
        self._haproxy = Daemon([program, "-db", "-f", own], folder / "haproxy.log")

    def start(self) -> None:
        self._haproxy.spawn()
        self._haproxy.wait_ready(lambda: listens(self._folder / "admin.sock"))

    def kill9(self) -> None:
        self._haproxy.kill9()

    def names(self) -> list[str]:
        return [line.split()[0] for line in (self._folder / "ways.map").read_text().splitlines()]

    def ask(self, name: str, identity: Path | None) -> bytes:
        """Return the answer to a request under this name; empty: the connection was closed. Raises
        OSError: HAProxy does not let this certificate in."""
        context = ssl.create_default_context(cafile=str(self._folder / "node.crt"))
        if identity is not None:
            context.load_cert_chain(identity)
        with (
            socket.create_connection(("127.0.0.1", self._port), LONG) as plain,
            context.wrap_socket(plain, server_hostname=name) as made,
        ):
            made.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return made.recv(1 << 16)


@pytest.fixture
def direct_end(lab: RunLab, add_node: AddNode, tmp_path: Path) -> Iterator[DirectEnd]:
    """The only node that takes jobs."""
    folder, port = tmp_path / "direct", free_port()
    add_node(
        "n2", "--gateway-port", str(port), "--direct-folder", folder, "--direct-user", "nobody"
    )
    lab.cli("node", "drain", "n1").succeeded()
    node = (folder / "node.pem").read_text()
    (folder / "node.crt").write_text(pinned_certificates.certificate_of(node))
    made = DirectEnd(folder, port)
    made.start()
    yield made
    with contextlib.suppress(ProcessLookupError):
        made.kill9()


def test_a_service_is_reached_directly_by_its_gateway_alone_and_by_ssh_when_that_fails(
    lab: RunLab, gateway: GatewayMachine, direct_end: DirectEnd, tmp_path: Path
) -> None:
    lab.submit("near", **public(commands=EVERYWHERE))
    context = trusted(gateway, lab, "near")
    gateway.wait_until_fast("near")
    load = load_of(gateway, "near", context)
    with load.running(CLIENTS):
        # A node that was too slow for the first try is asked again after a minute.
        wait_until(lambda: gateway.requests_at("d") >= 20 or load.failed, LONG, "direct requests")
        before = gateway.requests_at("r")
        _only_the_gateway_comes_in(direct_end, gateway.identity, tmp_path)
        direct_end.kill9()
        wait_until(lambda: gateway.requests_at("r") > before, LONG, "SSH")
        # An answer that was on its way is cut; HAProxy sends again what had none.
        cut = len(load.failed)
        until = load.asked + 20
        wait_until(lambda: load.asked >= until, LONG, "20 more requests")
    assert len(load.failed) == cut <= CLIENTS
    direct_end.start()
    (name,) = direct_end.names()
    assert direct_end.ask(name, gateway.identity).startswith(b"HTTP/1.0 200")
    lab.end_runs()
    wait_until(lambda: direct_end.names() == [], LONG, "the end of the way")
    assert direct_end.ask(name, gateway.identity) == b""


def _only_the_gateway_comes_in(end: DirectEnd, identity: Path, folder: Path) -> None:
    (name,) = end.names()
    assert end.ask(name, identity).startswith(b"HTTP/1.0 200")
    another = folder / "another.pem"
    another.write_text(pinned_certificates.make())
    for stranger in (None, another):
        with pytest.raises(ssl.SSLError):
            end.ask(name, stranger)
    # Nothing but the declared port of a task has a name.
    assert end.ask(f"00.{name.partition('.')[2]}", identity) == b""
    with pytest.raises(ssl.SSLError):
        end.ask("localhost", identity)
