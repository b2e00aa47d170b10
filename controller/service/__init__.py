"""The requests of users, independent of the way they make them: rules, refusals and answers.

Nothing here knows HTTP; the REST API shows what these methods return and raise.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Sequence

import msgspec
from prometheus_client.core import Metric

from controller.blobs import BlobStore
from controller.clock import Chance, Clock
from controller.disk import Disk
from controller.gateways.manager import GatewayManager
from controller.logs.store import LogStore
from controller.machines.manager import MachineManager
from controller.metric_history import MetricHistory
from controller.outputs.store import OutputStore
from controller.pipelines.autoscaling import Autoscaler
from controller.pipelines.run_pipeline import RunPipeline
from controller.service.accounts.login_links import LoginLinks
from controller.service.accounts.rights import require_admin
from controller.service.accounts.secrets import SecretService
from controller.service.accounts.service_keys import ServiceKeys
from controller.service.accounts.users import Gate, UserService
from controller.service.jobs.access import Connect, through_runners
from controller.service.jobs.logs import KeptLogs
from controller.service.jobs.metrics import MetricsService
from controller.service.jobs.outputs import OutputService
from controller.service.jobs.ports import PortService
from controller.service.jobs.terminals import TerminalService
from controller.service.machines.costs import CostService
from controller.service.machines.faults import FaultService
from controller.service.machines.fleets import FleetService
from controller.service.machines.gateways import GatewayService
from controller.service.machines.health import DoctorService, GpuService
from controller.service.machines.nodes import NodeService
from controller.service.machines.providers import ProviderService
from controller.service.machines.registrations import RegistrationService
from controller.service.machines.rented import RentedService
from controller.service.machines.user_data import JoinPoint
from controller.service.prometheus import ControllerFigures
from controller.service.runs.actions import ActionService
from controller.service.runs.blobs import BlobService
from controller.service.runs.deployments import DeploymentService
from controller.service.runs.explanations import ExplainService
from controller.service.runs.lookup import RunService
from controller.service.runs.plans import PlanService
from controller.service.runs.progress import PullsInProgress
from controller.service.runs.queue import QueueService
from controller.service.runs.starting_again import StartAgainService
from controller.service.runs.submission_stages import Texts
from controller.service.runs.submissions import SubmissionService
from controller.service.runs.sweeps import SweepService
from controller.service.ssh_keys import HostKeys
from controller.store.accounts import User
from controller.store.base import Sight, Store
from controller.traffic.routes import RouteTable
from controller.traffic.statistics import Traffic
from controller.vault import Vault
from fairlead.configuration.runs.plan import Defaults


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    """Where the controller keeps what outlives it."""

    store: Store
    logs: LogStore
    outputs: OutputStore
    blobs: BlobStore


class LiveParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the running controller that requests reach."""

    pipeline: RunPipeline
    connect: Connect
    """Waits for a node's live connection."""
    progress: PullsInProgress
    """The bytes of images being pulled, by attempt id."""
    routes: RouteTable
    traffic: Traffic
    autoscaler: Autoscaler
    gateways: GatewayManager
    machines: MachineManager | None = None
    figures: Sequence[Callable[[], Iterable[Metric]]] = ()
    """What Prometheus is shown besides."""
    disk: Disk | None = None
    """The one of the data folder; None: nobody measures it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chose, and what this controller is known by."""

    defaults: Defaults = Defaults()
    logs_kept_for: float = math.inf
    """Seconds."""
    outputs_kept_for: float = math.inf
    """Seconds."""
    service_url: Callable[[str], str | None] = lambda name: None
    """Says where a service answers at a host name of its own."""
    node_key: str | None = None
    """The public key with which this controller logs in at nodes."""
    join: JoinPoint | None = None
    terminal_secret: bytes = b""
    """What the keys of terminals are derived from, as in `Clusters`."""


class ControllerService:
    """The services by subject, as their rooms are. `host_keys` asks SSH servers for their keys."""

    def __init__(
        self,
        stores: Stores,
        parts: LiveParts,
        settings: Settings,
        *,
        gate: Gate,
        vault: Vault,
        metric_history: MetricHistory,
        host_keys: HostKeys,
        clock: Clock,
        chance: Chance,
    ) -> None:
        pipeline = parts.pipeline
        self._store = stores.store
        self.clock = clock
        self.disk = parts.disk
        self.started = secrets.token_hex(4)
        """Differs for each start of a controller: its revisions begin again."""
        self.accounts = AccountServices(stores.store, pipeline, gate, vault, clock)
        self.gateways = GatewayService(
            gateways=parts.gateways,
            routes=parts.routes,
            clock=clock,
            host_keys=host_keys,
            live_runs=pipeline.runs.values,
            own_url=settings.service_url,
        )
        gate.listen(parts.gateways.revoked)
        self.runs = RunServices(
            stores, parts, settings.defaults, self.accounts, self.gateways, clock, chance
        )
        self.jobs = JobServices(
            stores, parts.connect, settings, self.runs.lookup, metric_history, clock
        )
        self.machines = MachineServices(
            stores.store, parts, settings, self.runs.lookup, vault, host_keys, clock, chance
        )
        self.figures = ControllerFigures(
            pipeline,
            clock,
            stores.outputs,
            stores.logs,
            (*parts.figures, self.machines.rented.families),
        )

    async def controllers(self, user: User) -> Sight | None:
        """Return the controllers that share the database; None: it is not shared. Raises Forbidden,
        StoreUnavailable."""
        require_admin(user, "list controllers")
        return await self._store.peers()


class AccountServices:
    """Users and what lets them in, and the secrets and keys that they keep."""

    def __init__(
        self, store: Store, pipeline: RunPipeline, gate: Gate, vault: Vault, clock: Clock
    ) -> None:
        live_runs = pipeline.runs.values
        self.gate = gate
        self.login_links = LoginLinks(gate, clock)
        self.secrets = SecretService(store=store, vault=vault, gate=gate, clock=clock)
        self.service_keys = ServiceKeys(store=store, gate=gate, clock=clock, live_runs=live_runs)
        self.users = UserService(
            store=store,
            gate=gate,
            clock=clock,
            live_runs=live_runs,
            settled=pipeline.settled,
            committed=vault.apply,
        )


class RunServices:
    """Runs from their submission to their end."""

    def __init__(
        self,
        stores: Stores,
        parts: LiveParts,
        defaults: Defaults,
        accounts: AccountServices,
        gateways: GatewayService,
        clock: Clock,
        chance: Chance,
    ) -> None:
        pipeline = parts.pipeline
        self.progress = parts.progress
        self.lookup = RunService(pipeline=pipeline, store=stores.store, progress=parts.progress)
        self.blobs = BlobService(stores.blobs)
        self.actions = ActionService(pipeline, self.lookup)
        self.texts = Texts()
        self.submissions = SubmissionService(
            pipeline=pipeline,
            store=stores.store,
            clock=clock,
            chance=chance,
            defaults=defaults,
            blobs=stores.blobs,
            outputs=stores.outputs,
            runs=self.lookup,
            gate=accounts.gate,
            secrets=accounts.secrets,
            gateways=gateways,
        )
        self.sweeps = SweepService(pipeline, self.lookup, self.submissions)
        self.deployments = DeploymentService(
            pipeline=pipeline,
            runs=self.lookup,
            submissions=self.submissions,
            clock=clock,
            traffic=parts.traffic,
            autoscaler=parts.autoscaler,
        )
        self.starting_again = StartAgainService(pipeline, self.lookup, self.submissions, clock)
        self.explanations = ExplainService(pipeline, self.lookup, clock)
        self.plans = PlanService(pipeline, self.submissions, clock)
        self.queue = QueueService(pipeline, clock)


class JobServices:
    """What single jobs have: logs, outputs, metrics, ports and terminals."""

    def __init__(
        self,
        stores: Stores,
        connect: Connect,
        settings: Settings,
        runs: RunService,
        metric_history: MetricHistory,
        clock: Clock,
    ) -> None:
        self.logs = stores.logs
        self.kept_logs = KeptLogs(stores.logs, clock, settings.logs_kept_for)
        self.outputs = OutputService(stores.outputs, clock, settings.outputs_kept_for)
        self.metrics = MetricsService(runs, connect)
        self.metric_history = metric_history
        self.ports = PortService(runs, through_runners(connect))
        self.terminals = TerminalService(runs, self.ports, settings.terminal_secret)


class MachineServices:
    """Nodes, fleets and rented machines, what they cost, and what is broken there."""

    def __init__(
        self,
        store: Store,
        parts: LiveParts,
        settings: Settings,
        runs: RunService,
        vault: Vault,
        host_keys: HostKeys,
        clock: Clock,
        chance: Chance,
    ) -> None:
        pipeline, connect = parts.pipeline, parts.connect
        self.node_key = settings.node_key
        self.nodes = NodeService(pipeline, clock, chance, host_keys)
        self.registrations = RegistrationService(
            self.nodes, pipeline, clock, chance, settings.node_key, settings.join
        )
        self.fleets = FleetService(pipeline, clock, vault)
        self.rented = RentedService(pipeline, self.fleets, clock, parts.machines)
        self.costs = CostService(pipeline, self.rented, store, clock)
        self.providers = ProviderService(chance, clock, parts.machines)
        self.doctor = DoctorService(self.nodes, connect)
        self.gpus = GpuService(self.nodes, pipeline, connect)
        self.faults = FaultService(pipeline, runs, store)
