"""The requests of users, independent of the way they make them: rules, refusals and answers.

Nothing here knows HTTP; the REST API shows what these methods return and raise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from controller.blobs import BlobStore
from controller.clock import Chance, Clock
from controller.configuration.plan import Defaults
from controller.gateways.manager import GatewayManager
from controller.metric_history import MetricHistory
from controller.outputs.store import OutputStore
from controller.pipelines.autoscaling import Autoscaler
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.actions import ActionService
from controller.service.deployments import DeploymentService
from controller.service.faults import FaultService
from controller.service.fleets import FleetService
from controller.service.gateways import GatewayAccess, GatewayService
from controller.service.job_access import Connect, KeptLogs, Logs, MetricsService, PortService
from controller.service.login_links import LoginLinks
from controller.service.nodes import DoctorService, GpuService, NodeService
from controller.service.outputs import OutputService
from controller.service.progress import PullsInProgress
from controller.service.prometheus import ControllerNumbers
from controller.service.queue import QueueService
from controller.service.registrations import RegistrationService
from controller.service.runs import ExplainService, PlanService, RunService
from controller.service.secrets import SecretService
from controller.service.service_keys import ServiceKeys
from controller.service.ssh_keys import HostKeys
from controller.service.submissions import BlobService, SubmissionService
from controller.service.terminals import TerminalService
from controller.service.user_data import JoinPoint
from controller.service.users import Gate, UserService
from controller.store.base import Store
from controller.traffic.routes import RouteTable
from controller.traffic.statistics import Traffic
from controller.vault import Vault


class ControllerService:
    """The services by subject.

    `progress`: the bytes of images being pulled, by attempt id. `connect` waits for a node's live
    connection. `logs_kept_for` and `outputs_kept_for` are in seconds. `terminal_secret`: what
    the keys of terminals are derived from, as in `Clusters`.
    """

    def __init__(
        self,
        *,
        turns: RunPipeline,
        store: Store,
        logs: Logs,
        gate: Gate,
        clock: Clock,
        chance: Chance,
        defaults: Defaults,
        host_keys: HostKeys,
        progress: PullsInProgress,
        blobs: BlobStore,
        connect: Connect,
        node_key: str | None = None,
        logs_kept_for: float = math.inf,
        join: JoinPoint | None = None,
        traffic: Traffic,
        autoscaler: Autoscaler,
        metric_history: MetricHistory,
        vault: Vault,
        outputs: OutputStore,
        outputs_kept_for: float = math.inf,
        terminal_secret: bytes = b"",
        gateways: GatewayManager,
        routes: RouteTable,
        service_url: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        self.gate = gate
        self.login_links = LoginLinks(gate, clock)
        self.logs = logs
        self.kept_logs = KeptLogs(logs, clock, logs_kept_for)
        self.outputs = OutputService(outputs, clock, outputs_kept_for)
        self.progress = progress
        self.blobs = BlobService(blobs)
        self.node_key = node_key
        self.runs = RunService(turns=turns, store=store, progress=progress)
        self.metrics = MetricsService(self.runs, connect)
        self.metric_history = metric_history
        self.clock = clock
        self.numbers = ControllerNumbers(turns, clock, outputs)
        self.actions = ActionService(turns, self.runs)
        self.secrets = SecretService(store=store, vault=vault, clock=clock)
        self.gateways = GatewayService(
            gateways=gateways,
            routes=routes,
            clock=clock,
            host_keys=host_keys,
            live_runs=lambda: turns.runs.values(),
            own_url=service_url,
        )
        gateways.answers = GatewayAccess(gate, routes).answer
        gate.on_end = gateways.revoked
        self.submissions = SubmissionService(
            turns=turns,
            store=store,
            clock=clock,
            chance=chance,
            defaults=defaults,
            blobs=blobs,
            runs=self.runs,
            secrets=self.secrets,
            gateways=self.gateways,
        )
        self.deployments = DeploymentService(
            turns=turns,
            runs=self.runs,
            submissions=self.submissions,
            clock=clock,
            traffic=traffic,
            autoscaler=autoscaler,
        )
        self.explanations = ExplainService(turns, self.runs, clock)
        self.plans = PlanService(turns, self.submissions, clock)
        self.ports = PortService(self.runs, connect)
        self.queue = QueueService(turns, clock)
        self.terminals = TerminalService(self.runs, self.ports, terminal_secret)
        self.nodes = NodeService(turns, clock, chance, host_keys)
        self.faults = FaultService(turns, self.runs, store)
        self.registrations = RegistrationService(self.nodes, turns, clock, chance, node_key, join)
        self.fleets = FleetService(turns, clock)
        self.doctor = DoctorService(self.nodes, connect)
        self.gpus = GpuService(self.nodes, turns, connect)
        self.service_keys = ServiceKeys(
            store=store, gate=gate, clock=clock, live_runs=lambda: turns.runs.values()
        )
        self.users = UserService(
            store=store,
            gate=gate,
            clock=clock,
            live_runs=lambda: turns.runs.values(),
            committed=vault.apply,
        )
