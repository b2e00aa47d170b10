"""What `node install` refuses before it asks or changes a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncssh
import msgspec
import pytest

from common.links.host_keys import public_line
from controller.api.machines.nodes import node_view
from controller.commands.hosts.bundle import Bundle
from controller.commands.hosts.connection import HostError, Target
from controller.commands.hosts.host_plan import HostPlan, options_of
from controller.commands.hosts.nodes_api import NodesApi
from controller.commands.hosts.preflight import Facts
from controller.commands.install import install
from controller.lifecycle.model import Node, NodeAddress
from controller.service.machines.use import NodeUse
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.documents.nodes import NodeView
from fairlead.errors import ApiError
from fairlead.rest import ControllerClient

BUNDLE = Bundle(file=Path("b.tar"), version="1.0", arch="amd64")


class PlayedController(ControllerClient):
    """Answers with one fleet, and one node if it has one."""

    node: NodeView | None = None

    def get(self, path: str, **params: Any) -> bytes:
        if self.node is not None and path == f"/v1/nodes/{self.node.name}":
            return msgspec.json.encode(self.node)
        if self.node is not None and path == "/v1/nodes":
            return msgspec.json.encode({"nodes": [self.node], "next_cursor": None})
        if path != "/v1/fleets":
            raise ApiError(404, "not_found", "there is no such node", "node")
        fleet: dict[str, Any] = {
            "name": "default",
            "placement": None,
            "attributes": {},
            "nodes": [],
        }
        return msgspec.json.encode({"fleets": [fleet]})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": "GPU 1"}, "--name"),
        ({"volume_prefix": ["data"]}, "--volume-prefix"),
        ({"registry_mirror": "ftp://mirror"}, "--registry-mirror"),
        ({"upgrade": True, "uninstall": True}, "--upgrade or --uninstall"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(CliError, match=field) as caught:
        install("root@127.0.0.1:1", **{"name": "n1", **options})
    assert caught.value.exit_status == EXIT_USAGE


def test_a_port_that_is_none_is_named() -> None:
    with pytest.raises(CliError, match=r"target: '10\.0\.0\.5:99999' is not"):
        install("root@10.0.0.5:99999")


def plan(fleet: str | None) -> HostPlan:
    return HostPlan(
        target=Target(host="10.0.0.5"),
        name="n1",
        address=("10.0.0.5", 22),
        host_key="ssh-ed25519 AAAA",
        bundle=BUNDLE,
        fleet=fleet,
    )


def test_a_fleet_that_is_missing_is_told_with_the_command_that_makes_it() -> None:
    api = NodesApi(PlayedController("http://127.0.0.1:1", None))
    assert api.require_joinable(plan("default")) is None
    with pytest.raises(HostError, match="`fairlead fleet add big` makes it"):
        api.require_joinable(plan("big"))


KEY = public_line(asyncssh.generate_private_key("ssh-ed25519"))
FACTS = Facts(clock=0.0, uid=0)


@pytest.fixture
def joined() -> NodesApi:
    """A controller that reaches the node n1 at another address than its operator does."""
    controller = PlayedController("http://127.0.0.1:1", None)
    address = NodeAddress(shim_socket="/s", user="fairlead", host="192.168.1.5", host_key=KEY)
    node = Node(id="1", name="n1", address=address, created_at=0.0)
    controller.node = node_view(node, NodeUse(), None)
    return NodesApi(controller)


def test_an_address_that_is_not_named_stays_that_of_the_node_with_this_host_key(
    joined: NodesApi,
) -> None:
    silent = msgspec.structs.replace(plan(None), host_key=KEY, keeps_address=True)
    assert joined.join(silent) == []
    with pytest.raises(HostError, match=r"already a node n1, at fairlead@192\.168\.1\.5"):
        joined.join(msgspec.structs.replace(silent, keeps_address=False))
    other = public_line(asyncssh.generate_private_key("ssh-ed25519"))
    with pytest.raises(HostError, match="give another --name"):
        joined.join(msgspec.structs.replace(silent, host_key=other))


def test_a_name_that_is_not_given_is_that_of_the_node_at_the_address(joined: NodesApi) -> None:
    assert joined.named_at(("192.168.1.5", 22)) == "n1"
    assert joined.named_at(("10.0.0.5", 22)) is None


def test_docker_is_asked_for_only_where_nothing_was_said_before() -> None:
    def options(**changes: Any) -> tuple[str, ...]:
        facts = msgspec.structs.replace(FACTS, chosen=changes.pop("chosen", ""))
        return options_of(msgspec.structs.replace(plan(None), **changes), facts, KEY)

    assert options() == ("--docker", "install", "--tunnel-key", KEY)
    assert options(chosen="none") == ("--tunnel-key", KEY)
    assert options(chosen="none", docker="use") == ("--docker", "use", "--tunnel-key", KEY)
    assert options(chosen="none", takeover=True) == ("--tunnel-key", KEY, "--takeover")
