"""A controller without nodes: real service, real turns, a store in memory, its API on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Sequence
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from aiohttp.test_utils import TestClient, TestServer

from common.links.errors import LinkError
from common.links.host_keys import public_line
from common.tokens import digest
from controller.api.app import make_app
from controller.blobs import BlobStore
from controller.clock import SystemClock, system_chance
from controller.gateways.manager import GatewayManager
from controller.gateways.manager import Settings as GatewaySettings
from controller.lifecycle.model import Role, RunState
from controller.lifecycle.pending_reasons import NoNodeConnected
from controller.lifecycle.reports import NotPlaced
from controller.links.base import NodeConnection
from controller.logs.store import LogStore
from controller.metric_history import MetricHistory
from controller.outputs.store import OutputStore
from controller.pipelines.autoscaling import Autoscaler
from controller.pipelines.run_pipeline import RunPipeline
from controller.scheduling.placement import ReportsByRun
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.service import ControllerService, LiveParts, Settings, Stores
from controller.service.accounts.users import Gate
from controller.service.machines.gateways import GatewayAccess
from controller.service.runs.progress import PullsInProgress
from controller.store.accounts import StoredToken, User
from controller.store.base import Changes, Gateway
from controller.traffic.routes import RouteTable
from controller.traffic.statistics import Traffic
from controller.vault import KeyFile, Vault
from fairlead.model.statuses import FINAL_ATTEMPT_STATUSES
from tests.doubles.gateway import FakeGateway
from tests.doubles.memory_store import MemoryStore
from tests.support.ssh_daemon import free_port
from tests.unit.api.documented import as_documented

ADMIN_TOKEN = "admin-token-of-the-tests"
USER_TOKEN = "user-token-of-the-tests"
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE+XK8EfMlRDiwuR2PXDMZhYsKNAJsYlKFT8pCHPJ2cF"
RSA_HOST_KEY = public_line(asyncssh.generate_private_key("ssh-rsa", key_size=2048))


class NoPlace(JobSubmittedPipeline):
    """A scheduler that says of everything why it waits."""

    def place(self, now: float, without: Container[str] = frozenset()) -> ReportsByRun:
        return {
            run_id: [
                NotPlaced(
                    run_id=run_id,
                    attempt_id=member.attempt.id,
                    pending_reason=NoNodeConnected(),
                )
                for unit in units
                for member in unit.members
                if member.attempt.pending_reason is None
            ]
            for run_id, units in self.index.units.items()
        }


class PresentedKeys:
    """Hosts and the keys that each has; the others do not answer."""

    def __init__(self) -> None:
        self.keys = {"node.example": (HOST_KEY, RSA_HOST_KEY)}

    async def fetch(self, host: str, port: int) -> tuple[str, ...]:
        if host not in self.keys:
            raise LinkError(f"cannot reach sshd at {host}:{port}: connection refused")
        return self.keys[host]


class EndedLogs:
    """Tells the followers of a log that its attempt is final."""

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs

    def committed(self, touched: Sequence[RunState]) -> None:
        for state in touched:
            for job in state.jobs:
                for attempt in job.attempts:
                    if attempt.status in FINAL_ATTEMPT_STATUSES:
                        self._logs.finish(attempt.id)


class Controller:
    def __init__(
        self,
        store: MemoryStore,
        logs: LogStore,
        gate: Gate,
        blobs: BlobStore,
        vault: Vault,
        metric_history: MetricHistory,
        outputs: OutputStore,
    ) -> None:
        clock, chance = SystemClock(), system_chance()
        self.store = store
        self.logs = logs
        self.outputs = outputs
        self.blobs = blobs
        self.pipeline = RunPipeline(store, clock, chance, NoPlace(chance.new_id))
        self.pipeline.listen(EndedLogs(logs))
        self.host_keys = PresentedKeys()
        self.progress = PullsInProgress()
        self.connections: dict[str, NodeConnection] = {}
        self.traffic = Traffic(clock.now)
        self.routes = RouteTable()
        self.pipeline.listen(self.routes)
        self.agents: dict[str, FakeGateway] = {}
        """The agents of gateways, by name; one that is not planted is away."""
        self.gateways = GatewayManager(
            pipeline=self.pipeline,
            store=store,
            routes=self.routes,
            traffic=self.traffic,
            connect=self._connect,
            chance=chance,
            controller_id="c1",
            settings=GatewaySettings(
                make_link=self._agent, answers=GatewayAccess(gate, self.routes).answer
            ),
        )
        self.pipeline.listen(self.gateways)
        self.service = ControllerService(
            Stores(store=store, logs=logs, outputs=outputs, blobs=blobs),
            LiveParts(
                pipeline=self.pipeline,
                connect=self._connect,
                progress=self.progress,
                routes=self.routes,
                traffic=self.traffic,
                autoscaler=Autoscaler(self.pipeline, self.traffic, clock),
                gateways=self.gateways,
            ),
            Settings(node_key="ssh-ed25519 AAAA"),
            gate=gate,
            vault=vault,
            metric_history=metric_history,
            host_keys=self.host_keys,
            clock=clock,
            chance=chance,
        )

    def _agent(self, gateway: Gateway) -> FakeGateway:
        agent = self.agents.setdefault(gateway.name, FakeGateway())
        agent.is_away = gateway.domain.startswith("away.")
        return agent

    async def _connect(self, node_id: str) -> NodeConnection:
        return self.connections[node_id]


async def _gate(store: MemoryStore) -> Gate:
    users = (
        User(name="admin", role=Role.ADMIN, created_at=0.0),
        User(name="ada", role=Role.USER, created_at=0.0),
    )
    tokens = (
        StoredToken(id="t1", user="admin", digest=digest(ADMIN_TOKEN), created_at=0.0),
        StoredToken(id="t2", user="ada", digest=digest(USER_TOKEN), created_at=0.0),
    )
    await store.commit(Changes(users=users, tokens=tokens))
    return Gate(users, tokens, SystemClock())


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    store, logs = MemoryStore(), LogStore(tmp_path / "logs")
    await store.open()
    keys = await asyncio.to_thread(KeyFile.open, tmp_path / "secrets.key")
    gate, blobs = await _gate(store), BlobStore(tmp_path / "blobs")
    outputs, metrics = OutputStore(tmp_path / "outputs"), MetricHistory(tmp_path / "metrics")
    running = Controller(store, logs, gate, blobs, Vault(keys), metrics, outputs)
    work = [
        asyncio.create_task(running.pipeline.run()),
        asyncio.create_task(running.gateways.run()),
    ]
    yield running
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await asyncio.to_thread(logs.close)
    await asyncio.to_thread(outputs.close)
    await store.close()


@pytest.fixture
async def server(controller: Controller) -> AsyncIterator[TestServer]:
    """On a port that is still free when it was closed and another is started there."""
    app = make_app(controller.service)
    app.middlewares.append(as_documented)
    started = TestServer(app, port=free_port())
    await started.start_server()
    yield started
    await started.close()


@pytest.fixture
async def api(server: TestServer) -> AsyncIterator[TestClient[Any, Any]]:
    """As the admin."""
    async with TestClient(server, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as client:
        yield client
