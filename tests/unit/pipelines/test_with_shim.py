"""The whole controller beside a real shim on a node in memory, over the shim's own socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from controller.assembly import Assembly, NodeSettings
from controller.blobs import BlobStore
from controller.clock import SystemClock
from controller.gateways.manager import Settings
from controller.lifecycle.model import NodeAddress, NodeStatus
from controller.lifecycle.reports import StopRequested
from controller.links.clients import LocalLink
from controller.logs.store import LogStore
from controller.nodes import session
from controller.outputs.store import OutputStore
from controller.service import Stores
from controller.traffic.routes import RouteTable
from fairlead.model.statuses import AttemptStatus, RunStatus
from fairlead.wire.shim import RegistryAuth, TaskStatus
from shim.engines.base import ImageInfo
from shim.settings import GatewayAccess
from tests.doubles.gateway import FakeGateway
from tests.doubles.memory_store import MemoryDatabase, MemoryStore
from tests.doubles.secrets import NO_SECRETS
from tests.support.waiting import eventually
from tests.unit.pipelines.parts import a_node, attempt_of, steady_chance, submitted
from tests.unit.shim.parts import Node
from tests.unit.shim.serving import served

LOGIN = RegistryAuth(username="anna", password="s3cret")


@pytest.fixture(autouse=True)
def quick_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(session, "MAX_WAIT_SECONDS", 0.01)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Its registry has an image that nobody gets without the password, and not before a test lets
    the pull go on."""
    made = Node(tmp_path)
    made.settings.socket.parent.mkdir(parents=True)
    made.host.registry["private"] = (ImageInfo(id="sha256:p"), LOGIN.password)
    made.host.pull_gate.clear()
    return made


@contextlib.asynccontextmanager
async def controller(node: Node, folder: Path, database: MemoryDatabase) -> AsyncIterator[Assembly]:
    store, logs = MemoryStore(database), LogStore(folder)
    outputs = OutputStore(folder / "outputs")
    boot = await store.open()
    made = Assembly(
        Stores(store=store, logs=logs, outputs=outputs, blobs=BlobStore(folder / "blobs")),
        boot,
        await store.load(),
        clock=SystemClock(),
        chance=steady_chance(),
        progress={},
        routes=RouteTable(),
        nodes=NodeSettings(
            make_link=lambda _: LocalLink(str(node.settings.socket)),
            secrets=NO_SECRETS,
            cluster_secret=b"secret",
        ),
        gateways=Settings(make_link=lambda gateway: FakeGateway()),
    )
    work = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await asyncio.to_thread(logs.close)
        await asyncio.to_thread(outputs.close)
        await store.close()


async def submitted_to(it: Assembly, node: Node) -> tuple[str, str]:
    """The ids of a run of the private image, and of its task, which is being pulled."""
    state = submitted(image="private", registry_auth=LOGIN)
    address = NodeAddress(shim_socket=str(node.settings.socket), local_socket=True)
    fresh = msgspec.structs.replace(a_node(status=NodeStatus.CONNECTING), address=address)
    await it.pipeline.save_node(fresh, fresh.id)
    await it.pipeline.admit(state)
    await eventually(lambda: "pull private" in node.host.log)
    return state.run.id, attempt_of(state).id


async def pulled(node: Node, times: int) -> None:
    await eventually(lambda: node.host.log == ["pull private"] * times)


async def test_a_shim_restarted_during_a_private_pull_is_given_the_password_again(
    node: Node, tmp_path: Path
) -> None:
    async with controller(node, tmp_path, MemoryDatabase()) as it:
        async with served(node):
            run_id, task_id = await submitted_to(it, node)
        for lives in (2, 3):
            async with served(node) as shim:
                await pulled(node, times=lives)
                assert shim.supervisor.info(task_id).status is TaskStatus.PULLING
        node.host.pull_gate.set()
        async with served(node):
            await eventually(lambda: attempt_of(it.pipeline.runs[run_id]).seen.container_started)
            attempt = attempt_of(it.pipeline.runs[run_id])
            assert (attempt.status, attempt.pull.credentials_asked) == (AttemptStatus.PULLING, None)


async def test_a_controller_that_starts_after_the_shim_asked_brings_the_password(
    node: Node, tmp_path: Path
) -> None:
    database = MemoryDatabase()
    async with controller(node, tmp_path, database) as it, served(node):
        run_id, task_id = await submitted_to(it, node)
    node.host.pull_gate.set()
    async with served(node) as shim:
        await eventually(lambda: shim.supervisor.info(task_id).needs_credentials)
        async with controller(node, tmp_path, database) as again:
            await eventually(lambda: attempt_of(again.pipeline.runs[run_id]).seen.container_started)


async def test_a_node_that_was_away_is_told_that_a_gateway_was_removed(
    node: Node, tmp_path: Path
) -> None:
    access = GatewayAccess(folder=tmp_path / "exposed", keys=tmp_path / "keys")
    node.settings = msgspec.structs.replace(node.settings, gateways=access)
    (tmp_path / "keys").write_text("restrict,port-forwarding ssh-ed25519 AAAA gateway\n")
    address = NodeAddress(shim_socket=str(node.settings.socket), local_socket=True)
    fresh = msgspec.structs.replace(a_node(status=NodeStatus.CONNECTING), address=address)
    async with controller(node, tmp_path, MemoryDatabase()) as it:
        await it.pipeline.save_node(fresh, fresh.id)
        async with served(node):
            await eventually(lambda: (tmp_path / "keys").read_text() == "")


async def test_a_child_that_never_heard_of_its_parents_end_is_stopped_by_the_next_controller(
    node: Node, tmp_path: Path
) -> None:
    database = MemoryDatabase()
    parent, child = submitted("parent"), submitted("child")
    async with controller(node, tmp_path, database) as it:
        await it.pipeline.admit(parent)
        await it.pipeline.report(StopRequested(run_id=parent.run.id, abort=False, by="ann"))
    run = msgspec.structs.replace(child.run, parent_id=parent.run.id, version=1)
    database.runs[run.id] = msgspec.structs.replace(child, run=run)
    async with controller(node, tmp_path, database):
        await eventually(lambda: database.runs[run.id].run.status is RunStatus.TERMINATED)
    assert database.runs[run.id].run.message == "its parent run parent ended as terminated"
