"""Services at a gateway: a real Caddy with TLS, the agent, its SSH connection to the node."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import asyncssh
import pytest
from websockets.sync.client import connect

from tests.e2e.services.test_proxy import APP, PROBES, SMALL
from tests.support.gateway import GatewayMachine
from tests.support.lab import RunLab
from tests.support.ssh_daemon import GATEWAY_USER
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def fields_of(**fields: Any) -> dict[str, Any]:
    service = {"type": "service", "commands": APP, "port": 8000, "probes": PROBES}
    return {**service, "resources": SMALL, "gateway": "main", **fields}


def as_admin(lab: RunLab) -> dict[str, str]:
    return {"Authorization": f"Bearer {lab.controller.token}"}


def trusted(gateway: GatewayMachine, lab: RunLab, name: str) -> ssl.SSLContext:
    """Once the service answers at the gateway."""

    def answers() -> ssl.SSLContext | None:
        with contextlib.suppress(OSError):
            context = gateway.trust()
            status, _, _ = gateway.get(name, headers=as_admin(lab), context=context)
            return context if status == 200 else None
        return None

    found = wait_until(answers, 120, f"{name} at the gateway")
    assert found is not None
    return found


class Load:
    """Clients that ask the gateway on and on; `failed` has what was no success."""

    def __init__(
        self, gateway: GatewayMachine, lab: RunLab, name: str, context: ssl.SSLContext
    ) -> None:
        self._gateway, self._name, self._context = gateway, name, context
        self._headers = as_admin(lab)
        self._stop = threading.Event()
        self.failed: list[object] = []
        self.asked = 0
        self.seen: set[str] = set()

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                status, text, _ = self._gateway.get(
                    self._name, headers=self._headers, context=self._context
                )
            except OSError as error:
                self.failed.append(error)
                continue
            self.asked += 1
            self.seen.add(text.split()[0])
            if status != 200:
                self.failed.append((status, text))

    @contextlib.contextmanager
    def running(self, clients: int = 3) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def wait_for(self, more: int) -> None:
        until = self.asked + more
        wait_until(lambda: self.asked >= until or self.failed, what=f"{more} more requests")


def test_a_service_answers_at_its_host_name_over_tls(lab: RunLab, gateway: GatewayMachine) -> None:
    lab.submit("web", **fields_of())
    context = trusted(gateway, lab, "web")
    status, text, _ = gateway.get("web", headers=as_admin(lab), context=context)
    assert (status, text.split(" saw ")[1]) == (200, "nothing")
    assert gateway.get("web", context=context)[0] == 401
    status, _, headers = gateway.get("web", "/a?b=c")
    assert (status, headers["Location"]) == (308, f"https://web.apps.test:{gateway.https}/a?b=c")
    shown = lab.get("/v1/services/web")
    assert (shown["gateway"], shown["url"]) == ("main", "https://web.apps.test/")
    url = "wss://web.apps.test/ws"
    with (
        gateway.dial() as plain,
        connect(
            url,
            sock=plain,
            ssl=context,
            server_hostname="web.apps.test",
            additional_headers=as_admin(lab),
        ) as ws,
    ):
        ws.send("hello")
        assert ws.recv(timeout=30) == "HELLO"


def test_restarts_and_a_rollout_lose_no_request_at_the_gateway(
    lab: RunLab, gateway: GatewayMachine
) -> None:
    lab.submit("steady", **fields_of())
    context = trusted(gateway, lab, "steady")
    load = Load(gateway, lab, "steady", context)
    with load.running():
        load.wait_for(30)
        lab.controller.kill9()
        load.wait_for(100)
        lab.controller.start()
        gateway.agent.stop()
        gateway.start_agent()
        load.wait_for(100)
        lab.apply("steady", **fields_of(env={"VERSION": "2"})).succeeded()
        wait_until(lambda: len(load.seen) == 2 or load.failed, 60, "the new version")
        load.wait_for(30)
    assert load.failed == []
    assert len(load.seen) == 2


def test_a_replica_that_is_killed_under_load_loses_no_request_at_the_gateway(
    lab: RunLab, gateway: GatewayMachine
) -> None:
    lab.submit("pair", **fields_of(replicas=2))
    context = trusted(gateway, lab, "pair")
    load = Load(gateway, lab, "pair", context)
    with load.running():
        wait_until(lambda: len(load.seen) == 2 or load.failed, 60, "two replicas")
        first = lab.attempts("pair")[-1]["id"]
        container = lab.dockerd.docker("ps", "-q", "--filter", f"name={first}")
        lab.dockerd.docker("kill", "-s", "KILL", container)
        load.wait_for(200)
    assert load.failed == []


def test_a_sleeping_service_is_woken_by_a_request_at_its_gateway(
    lab: RunLab, gateway: GatewayMachine
) -> None:
    scaling = {"metric": "rps", "target": 10}
    lab.submit("asleep", **fields_of(replicas="0..1", scaling=scaling))
    lab.wait_for("asleep", "pending")
    headers = {**as_admin(lab), "X-Forwarded-Proto": "https"}

    def registered() -> bool:
        return gateway.get("asleep", headers=headers, context=None)[0] == 308

    wait_until(registered, what="the service at the gateway")
    context = gateway.trust()
    assert gateway.get("asleep", headers=as_admin(lab), context=context, timeout=120)[0] == 200
    (group,) = lab.get("/v1/services/asleep")["groups"]
    assert group["wanted"] == 1


async def test_a_gateways_key_opens_the_exposed_sockets_and_nothing_else(
    lab: RunLab, gateway: GatewayMachine
) -> None:
    await asyncio.to_thread(lab.submit, "lent", **fields_of())
    await asyncio.to_thread(trusted, gateway, lab, "lent")
    attempt = lab.attempts("lent")[-1]["id"]
    exposed = lab.folder / "exposed" / f"{attempt}-8000.sock"
    runner = lab.shim.socket.with_suffix(".d") / f"{attempt}.sock"
    async with asyncssh.connect(
        "127.0.0.1",
        lab.sshd.port,
        username=GATEWAY_USER,
        client_keys=[str(gateway.key)],
        known_hosts=None,
        config=None,
    ) as ssh:
        reader, writer = await ssh.open_unix_connection(str(exposed))
        assert await reader.readline() == b"ok\n"
        writer.close()
        for other in (lab.shim.socket, runner):
            with pytest.raises(asyncssh.ChannelOpenError):
                await ssh.open_unix_connection(str(other))
        done = await ssh.run("id")
        assert (done.exit_status, "uid=" in str(done.stdout)) == (1, False)
