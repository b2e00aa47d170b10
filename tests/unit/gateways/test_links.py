"""The agent's connections to nodes: one for each, and none is left behind."""

from __future__ import annotations

import asyncio

import asyncssh
import pytest

from common.links import node_links as links
from common.links.node_links import NodeLinks
from common.links.ssh import Advice, SshAddress
from common.proxy.view import Replica
from common.streams import StreamReader, StreamWriter
from fairlead.wire.gateway import GatewayNode
from tests.support.waiting import eventually

NODE = GatewayNode(id="n1", host="10.0.0.1", host_key="ssh-ed25519 AAAA")
REPLICA = Replica(id="a1", group="main", node_id="n1", socket="/exposed.sock", port=0)


class PlayedConnection(asyncssh.SSHClientConnection):
    def __init__(self) -> None:
        self.was_closed = False

    def is_closed(self) -> bool:
        return self.was_closed

    def abort(self) -> None:
        self.was_closed = True

    async def wait_closed(self) -> None:
        assert self.was_closed


class PlayedWriter:
    def close(self) -> None:
        pass


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[PlayedConnection]:
    """The connections that are opened; each exposed socket answers."""
    opened: list[PlayedConnection] = []

    class PlayedLogin:
        def __init__(self, address: SshAddress, identity: asyncssh.SSHKey, advice: Advice) -> None:
            self.user = address.user

        async def connect(self) -> PlayedConnection:
            assert self.user == "fairlead-gateway"
            opened.append(PlayedConnection())
            return opened[-1]

    async def open_stream(ssh: object, path: str) -> tuple[StreamReader, StreamWriter]:
        reader = asyncio.StreamReader()
        reader.feed_data(b"ok\nfirst")
        return reader, PlayedWriter()  # type: ignore[return-value]

    monkeypatch.setattr(links, "SshLogin", PlayedLogin)
    monkeypatch.setattr(links, "open_stream", open_stream)
    return opened


@pytest.fixture
def nodes() -> NodeLinks:
    return NodeLinks(asyncssh.generate_private_key("ssh-ed25519"))


async def test_requests_share_a_nodes_connection(
    nodes: NodeLinks, made: list[PlayedConnection]
) -> None:
    nodes.update([NODE])
    streams = await asyncio.gather(*(nodes.connect(REPLICA) for _ in range(3)))
    assert [one.first for one in streams] == [b"first"] * 3
    assert len(made) == 1
    await nodes.close()
    assert made[0].was_closed


async def test_the_connection_of_a_node_that_is_gone_lingers_and_is_closed(
    nodes: NodeLinks, made: list[PlayedConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LINGER_SECONDS", 0.0)
    nodes.update([NODE])
    await nodes.connect(REPLICA)
    nodes.update([])
    assert [one.was_closed for one in made] == [False]
    await eventually(lambda: made[0].was_closed)


async def test_the_end_of_the_agent_closes_a_lingering_connection(
    nodes: NodeLinks, made: list[PlayedConnection]
) -> None:
    nodes.update([NODE])
    await nodes.connect(REPLICA)
    nodes.update([])
    await nodes.close()
    assert [one.was_closed for one in made] == [True]
