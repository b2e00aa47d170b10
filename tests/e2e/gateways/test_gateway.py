"""Services at a gateway: a real HAProxy with TLS, the agent, its SSH connection to the node."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

import asyncssh
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.e2e.gateways.conftest import AddNode
from tests.e2e.services.test_proxy import APP, PROBES, SMALL
from tests.support.gateway import GatewayMachine
from tests.support.lab import RunLab
from tests.support.load import Load
from tests.support.ssh_daemon import GATEWAY_USER
from tests.support.waiting import LONG, wait_until

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

    found = wait_until(answers, LONG, f"{name} at the gateway")
    assert found is not None
    return found


def load_of(lab: RunLab, gateway: GatewayMachine, name: str, context: ssl.SSLContext) -> Load:
    def ask() -> tuple[int, str]:
        return gateway.get(name, headers=as_admin(lab), context=context)[:2]

    return Load(ask)


@contextlib.contextmanager
def talking(
    lab: RunLab, gateway: GatewayMachine, name: str, context: ssl.SSLContext
) -> Iterator[ClientConnection]:
    """A WebSocket to the service."""
    host = f"{name}.{gateway.domain}"
    with (
        gateway.dial() as plain,
        connect(
            f"wss://{host}/ws",
            sock=plain,
            ssl=context,
            server_hostname=host,
            additional_headers=as_admin(lab),
            open_timeout=LONG,
            ping_interval=None,
        ) as ws,
    ):
        yield ws


@contextlib.contextmanager
def counting(
    lab: RunLab, gateway: GatewayMachine, name: str, context: ssl.SSLContext
) -> Iterator[Iterator[int]]:
    """The numbers of the service's events, each as soon as it comes."""
    with contextlib.closing(gateway.connection(name, context)) as connection:
        headers = {"Host": f"{name}.{gateway.domain}", **as_admin(lab)}
        connection.request("GET", "/count", headers=headers)
        answer = connection.getresponse()
        events = (line.split() for line in iter(answer.readline, b"") if line.strip())
        yield (int(number) for _, _, number in events)


def nodes_of(lab: RunLab, name: str) -> list[str]:
    """The node of each replica that gets requests."""
    replicas = lab.get(f"/v1/services/{name}")["replicas"]
    return sorted(one["node"] for one in replicas if one["registered_at"] is not None)


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
    with talking(lab, gateway, "web", context) as ws:
        ws.send("hello")
        assert ws.recv(timeout=LONG) == "HELLO"


def test_restarts_and_a_rollout_lose_no_request_at_the_gateway(
    lab: RunLab, gateway: GatewayMachine
) -> None:
    lab.submit("steady", **fields_of())
    context = trusted(gateway, lab, "steady")
    load = load_of(lab, gateway, "steady", context)
    with load.running():
        load.wait_for(30)
        lab.controller.kill9()
        load.wait_for(100)
        lab.controller.start()
        gateway.agent.stop()
        gateway.start_agent()
        load.wait_for(100)
        lab.apply("steady", **fields_of(env={"VERSION": "2"})).succeeded()
        wait_until(lambda: len(load.seen) == 2 or load.failed, LONG, "the new version")
        load.wait_for(30)
    assert load.failed == []
    assert len(load.seen) == 2


def test_a_drained_node_loses_no_request_and_no_open_stream_at_the_gateway(
    lab: RunLab, gateway: GatewayMachine, add_node: AddNode
) -> None:
    lab.submit("handed", **fields_of())
    context = trusted(gateway, lab, "handed")
    add_node("n2")
    load = load_of(lab, gateway, "handed", context)
    streams = talking(lab, gateway, "handed", context), counting(lab, gateway, "handed", context)
    with load.running():
        with streams[0] as ws, streams[1] as numbers:
            first = next(numbers)
            lab.cli("node", "drain", "n1").succeeded()
            wait_until(lambda: nodes_of(lab, "handed") == ["n2"], LONG, "a replica on n2")
            load.wait_for(30)
            ws.send("still there")
            assert ws.recv(timeout=LONG) == "STILL THERE"
            assert [next(numbers) for _ in range(3)] == [first + 1, first + 2, first + 3]
            assert lab.attempts("handed")[-1]["status"] == "terminating"
        wait_until(lambda: _has_ended(lab, "handed"), LONG, "the drained replica to end")
    assert load.failed == []
    assert lab.attempts("handed")[-1]["termination_reason"] == "node_drained"


def _has_ended(lab: RunLab, name: str) -> bool:
    return bool(lab.attempts(name)[-1]["status"] == "terminated")


def test_from_one_replica_to_three_on_two_nodes_and_back_loses_no_request_at_the_gateway(
    lab: RunLab, gateway: GatewayMachine, add_node: AddNode
) -> None:
    half = {"cpu": 0.1, "memory": "1500MB"}
    lab.submit("scaled", **fields_of(resources=half))
    context = trusted(gateway, lab, "scaled")
    add_node("n2")
    load = load_of(lab, gateway, "scaled", context)
    with load.running():
        lab.apply("scaled", **fields_of(resources=half, replicas=3)).succeeded()
        wait_until(lambda: len(load.seen) == 3 or load.failed, LONG, "three replicas")
        assert set(nodes_of(lab, "scaled")) == {"n1", "n2"}
        lab.apply("scaled", **fields_of(resources=half)).succeeded()
        wait_until(lambda: len(nodes_of(lab, "scaled")) == 1, LONG, "one replica")
        load.wait_for(30)
    assert load.failed == []


def test_a_replica_that_is_killed_under_load_loses_no_request_at_the_gateway(
    lab: RunLab, gateway: GatewayMachine
) -> None:
    lab.submit("pair", **fields_of(replicas=2))
    context = trusted(gateway, lab, "pair")
    load = load_of(lab, gateway, "pair", context)
    with load.running():
        wait_until(lambda: len(load.seen) == 2 or load.failed, LONG, "two replicas")
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
    gateway.wait_until_shown("asleep")
    context = gateway.trust()
    assert gateway.get("asleep", headers=as_admin(lab), context=context)[0] == 200
    (group,) = lab.get("/v1/services/asleep")["groups"]
    assert group["wanted"] == 1


async def test_a_gateways_key_opens_the_exposed_sockets_and_nothing_else(
    lab: RunLab, gateway: GatewayMachine
) -> None:
    folder = lab.folder / "exposed"
    before = set(folder.glob("*.sock"))
    await asyncio.to_thread(lab.submit, "lent", **fields_of())
    await asyncio.to_thread(trusted, gateway, lab, "lent")
    attempt = lab.attempts("lent")[-1]["id"]
    (exposed,) = set(folder.glob("*.sock")) - before
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
        # The names of other services' sockets are not told to it, and it can't list them.
        for other in (lab.shim.socket, runner, folder / f"{attempt}-8000.sock"):
            with pytest.raises(asyncssh.ChannelOpenError):
                await ssh.open_unix_connection(str(other))
        done = await ssh.run("id")
        assert (done.exit_status, "uid=" in str(done.stdout)) == (1, False)
