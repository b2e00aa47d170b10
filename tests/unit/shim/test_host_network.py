"""The node's network: which tasks share it, and what they may not do there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.wire.errors import Refused
from fairlead.wire.node import HostNetwork
from fairlead.wire.shim import ContainerOptions, NetworkMode, TaskResources, TaskStatus
from shim import main
from shim.admission import container_rules
from shim.daemon import Daemon
from shim.errors import StartError
from shim.settings import Settings
from tests.doubles.engines import MemoryEngine
from tests.unit.shim.parts import CALLER, Node, request, settings, until

WHOLE = TaskResources(cpu=1.0, memory=1 << 30, whole_node=True)
PART = TaskResources(cpu=1.0, memory=1 << 30)
RAW = ("NET_RAW",)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


class EngineWithoutNetworks(MemoryEngine):
    has_networks = False


def says(node: Node, **said: Any) -> Node:
    node.settings = msgspec.structs.replace(node.settings, **said)
    return node


async def running(daemon: Daemon, **changes: Any) -> NetworkMode:
    await daemon.supervisor.put("t1", request(**changes), CALLER)
    return (await until(daemon, "t1", TaskStatus.RUNNING)).network_mode


@pytest.mark.parametrize(
    ("said", "resources", "mode"),
    [
        (HostNetwork.WHOLE_NODE, WHOLE, NetworkMode.HOST),
        (HostNetwork.WHOLE_NODE, PART, NetworkMode.BRIDGE),
        (HostNetwork.NEVER, WHOLE, NetworkMode.BRIDGE),
        (HostNetwork.NEVER, PART, NetworkMode.BRIDGE),
    ],
)
async def test_the_nodes_network_goes_to_whoever_holds_the_node_unless_its_operator_says_never(
    node: Node, said: HostNetwork, resources: TaskResources, mode: NetworkMode
) -> None:
    async with says(node, host_network=said).shim() as daemon:
        assert await running(daemon, resources=resources) is mode
        assert (await daemon.node()).host_network is said
        assert ("run-1" in node.host.networks) is (mode is NetworkMode.BRIDGE)


async def test_a_task_whose_peers_reach_it_is_refused_where_no_task_gets_the_nodes_network(
    node: Node,
) -> None:
    wanted = request(resources=WHOLE, needs_host_network=True)
    async with says(node, host_network=HostNetwork.NEVER).shim() as daemon:
        with pytest.raises(Refused, match="--host-network never") as caught:
            await daemon.supervisor.put("t1", wanted, CALLER)
        assert (caught.value.status, caught.value.code) == (409, "no_host_network")
        assert (daemon.supervisor.infos, daemon.supervisor.allocations) == ((), ())


async def test_a_task_that_ran_before_its_operator_said_never_goes_on_and_is_known(
    node: Node,
) -> None:
    wanted = request(resources=WHOLE, needs_host_network=True)
    async with node.shim() as daemon:
        await daemon.supervisor.put("t1", wanted, CALLER)
        await until(daemon, "t1", TaskStatus.RUNNING)
    async with says(node, host_network=HostNetwork.NEVER).shim() as daemon:
        info, is_new = await daemon.supervisor.put("t1", wanted, CALLER)
        assert (info.network_mode, is_new) == (NetworkMode.HOST, False)


# -- raw sockets ----------------------------------------------------------------------------


def dropped(given: ContainerOptions, mode: NetworkMode, where: Settings) -> tuple[str, ...]:
    return container_rules.granted(given, mode, where).cap_drop


def test_in_the_nodes_network_a_container_reads_nobody_elses_traffic(tmp_path: Path) -> None:
    where = settings(tmp_path)
    assert dropped(ContainerOptions(), NetworkMode.HOST, where) == RAW
    assert dropped(ContainerOptions(cap_drop=("CHOWN",)), NetworkMode.HOST, where) == (
        "CHOWN",
        "NET_RAW",
    )
    assert dropped(ContainerOptions(), NetworkMode.BRIDGE, where) == ()


@pytest.mark.parametrize(
    ("allowed", "given"),
    [
        ({"allow_raw_sockets": True}, ContainerOptions()),
        ({"allow_privileged": True}, ContainerOptions(cap_add=RAW)),
        ({"allow_privileged": True}, ContainerOptions(cap_add=("ALL",))),
        ({"allow_privileged": True}, ContainerOptions(privileged=True)),
    ],
)
def test_raw_sockets_are_kept_where_the_operator_allows_them(
    tmp_path: Path, allowed: dict[str, Any], given: ContainerOptions
) -> None:
    where = msgspec.structs.replace(settings(tmp_path), **allowed)
    wanted = request(resources=WHOLE, container=given)
    container_rules.check_network(wanted, where)
    assert dropped(given, NetworkMode.HOST, where) == ()


def test_raw_sockets_that_a_job_asks_for_are_refused_in_the_nodes_network_alone(
    tmp_path: Path,
) -> None:
    where, wish = settings(tmp_path), ContainerOptions(cap_add=RAW)
    container_rules.check_network(request(resources=PART, container=wish), where)
    with pytest.raises(Refused, match="--allow-raw-sockets") as caught:
        container_rules.check_network(request(resources=WHOLE, container=wish), where)
    assert (caught.value.status, caught.value.field) == (403, "container.cap_add")


async def test_the_container_is_made_without_what_was_taken_away(node: Node) -> None:
    async with node.shim() as daemon:
        await running(daemon, resources=WHOLE)
    assert node.host.containers["c-t1"].spec.options.cap_drop == RAW


def test_an_engine_without_networks_cannot_keep_tasks_out_of_the_nodes() -> None:
    with pytest.raises(StartError, match="use --engine docker"):
        main.check_host_network(HostNetwork.NEVER, EngineWithoutNetworks())
    main.check_host_network(HostNetwork.WHOLE_NODE, EngineWithoutNetworks())
    main.check_host_network(HostNetwork.NEVER, MemoryEngine())


async def test_a_task_of_an_engine_without_networks_is_in_the_nodes(node: Node) -> None:
    async with node.shim(EngineWithoutNetworks(node.host)) as daemon:
        assert await running(daemon, resources=PART) is NetworkMode.HOST
