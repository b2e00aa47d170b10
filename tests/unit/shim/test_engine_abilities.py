"""A shim tells what its engine cannot do, and takes no task that needs it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fairlead.wire.engine_abilities import EngineAbility
from fairlead.wire.errors import Refused
from fairlead.wire.node import NodeAllows
from shim.engines.docker.engine import DockerEngine
from shim.engines.process import ProcessEngine
from shim.node import machine
from tests.doubles.engines import MemoryEngine
from tests.unit.shim.parts import CALLER, Node, request

ALL = tuple(EngineAbility)


class PlainEngine(MemoryEngine):
    abilities = frozenset({EngineAbility.OPTIONS})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_docker_can_do_everything_and_plain_processes_only_what_the_runner_does() -> None:
    assert DockerEngine.abilities == frozenset(ALL)
    assert ProcessEngine.abilities == frozenset({EngineAbility.SIGNAL})


async def test_what_the_engine_lacks_is_in_what_the_node_tells(node: Node) -> None:
    async with node.shim() as daemon:
        assert (await daemon.node()).engine_lacks == ()
    async with node.shim(PlainEngine(node.host)) as daemon:
        told = await daemon.node()
        assert told.engine_lacks == tuple(one for one in ALL if one is not EngineAbility.OPTIONS)
        assert {"images", "volumes", "signal"} <= set(told.engine_lacks)
        assert told.abilities == ("container options",)


async def test_what_the_operator_allows_is_in_what_the_node_tells(node: Node) -> None:
    async with node.shim() as daemon:
        assert (await daemon.node()).allows == NodeAllows(
            privileged=False, raw_sockets=False, volume_prefixes=()
        )
    node.settings = msgspec.structs.replace(
        node.settings, allow_privileged=True, volume_prefixes=(Path("/data"),)
    )
    async with node.shim() as daemon:
        assert (await daemon.node()).allows == NodeAllows(
            privileged=True, raw_sockets=True, volume_prefixes=("/data",)
        )


async def test_a_task_that_needs_more_is_refused_before_anything_is_done(node: Node) -> None:
    async with node.shim(PlainEngine(node.host)) as daemon:
        wanted = request(needs_of_engine=("volumes", "container options", "of a later one"))
        with pytest.raises(Refused, match="needs volumes and of a later one, which") as caught:
            await daemon.supervisor.put("t1", wanted, CALLER)
        assert (caught.value.status, caught.value.code) == (409, "engine_lacks")
        assert (daemon.supervisor.infos, daemon.supervisor.allocations) == ((), ())
        other = request(needs_of_engine=("container options",))
        assert (await daemon.supervisor.put("t1", other, CALLER))[1]


@pytest.mark.parametrize("files", [(), ("uverbs0",)])
async def test_a_node_tells_whether_it_has_infiniband(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]
) -> None:
    folder = tmp_path / "dev" / "infiniband"
    (folder / "by-path").mkdir(parents=True)
    for name in files:
        (folder / name).touch()
    assert machine.infiniband(tmp_path / "dev") == files
    monkeypatch.setattr(machine, "infiniband", lambda: files)
    async with node.shim() as daemon:
        assert (await daemon.node()).infiniband is bool(files)


def test_a_machine_without_the_folder_has_none(tmp_path: Path) -> None:
    assert machine.infiniband(tmp_path) == ()
