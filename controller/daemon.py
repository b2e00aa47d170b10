"""The controller as a process: it opens what it needs, serves until it is stopped, and closes all.

`Assembly` joins the working parts, in the same way for the real process and for the simulation.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from ipaddress import IPv4Network, ip_address
from pathlib import Path

import asyncssh
import msgspec
from aiohttp import web

from controller import identity
from controller.api.app import make_runner
from controller.api.join import make_join_runner
from controller.api.origins import Origins
from controller.blobs import MOST_BYTES, BlobStore
from controller.clock import Chance, Clock, SystemClock, system_chance
from controller.configuration.plan import Defaults
from controller.gateways.link import GatewayLink, SocketGatewayLink
from controller.gateways.manager import GatewayManager
from controller.lifecycle.inventory import DEFAULT_NODE_FAILURE, NodeFailure
from controller.lifecycle.model import Node
from controller.links import ssh
from controller.links.base import NodeConnection, NodeLink, why_unreachable
from controller.links.clients import LocalLink
from controller.links.ssh import SshLink
from controller.logs.store import LogStore
from controller.metric_history import MetricHistory
from controller.nodes.drains import DrainDeadlines
from controller.nodes.engines import EngineAbsences
from controller.nodes.manager import NodeManager
from controller.nodes.session import Settings
from controller.nodes.strays import StrayTasks
from controller.outputs.bucket import Bucket
from controller.outputs.store import DEFAULT_LIMIT, OutputStore
from controller.outputs.uploads import DEFAULT_ABOVE, OutputUploads
from controller.pipelines import dev_environments, service_replicas
from controller.pipelines.autoscaling import Autoscaler
from controller.pipelines.cluster import Clusters, secret_of
from controller.pipelines.effects import EffectRunner
from controller.pipelines.job_running import JobRunningPipeline
from controller.pipelines.job_terminating import JobTerminatingPipeline
from controller.pipelines.log_collection import LogCollector
from controller.pipelines.output_collection import OutputCollector
from controller.pipelines.run_pipeline import RunPipeline
from controller.pipelines.to_node import SecretSource
from controller.proxy.access import GateAccess
from controller.proxy.entry import Proxy
from controller.proxy.entry import Settings as ProxySettings
from controller.proxy.probes import try_probe
from controller.proxy.registered import CountedTraffic, RegisteredServices, through_runners
from controller.retention import Retention, RetentionTimes
from controller.scheduling.scheduler import JobSubmittedPipeline
from controller.service import ControllerService
from controller.service.metric_sampler import MetricSampler
from controller.service.progress import PullsInProgress
from controller.service.user_data import JoinPoint
from controller.service.users import Gate
from controller.store.base import (
    Boot,
    Gateway,
    LeaseLost,
    Snapshot,
    Store,
    StoreError,
    StoreUnavailable,
)
from controller.store.sql import Database, SqlStore
from controller.store.sqlite import SqliteDatabase
from controller.tls import (
    CertificateFiles,
    CertificateUnusable,
    ServerCertificate,
    own_certificate,
)
from controller.traffic.routes import RouteTable
from controller.traffic.statistics import Traffic
from controller.vault import SECRETS_KEY_NAME, KeyFile, KeyUnusable, Vault
from controller.web.app import Dashboard, session_key
from gateway.schemas import Browsers, ProxyLimits
from shim.schemas import Fence, PullProgress, TaskInfo, TaskStatus


class Assembly:
    """Turns, node sessions and effects over one opened store.

    `node_failure`: how a node's silence is judged. `progress` gets the bytes of images being
    pulled, by attempt id; they are never stored. `cluster_secret`: what the SSH keys of multi-node
    runs are derived from. `cluster_networks`: where their jobs reach each other. `secrets`: what
    `${{ secrets.NAME }}` stands for. `gateway_limits` and `gateway_browsers`: what holds for the
    proxy of this controller holds at gateways too.
    """

    def __init__(
        self,
        *,
        store: Store,
        boot: Boot,
        snapshot: Snapshot,
        logs: LogStore,
        progress: MutableMapping[str, PullProgress],
        make_link: Callable[[Node], NodeLink],
        clock: Clock,
        chance: Chance,
        blobs: BlobStore,
        node_failure: NodeFailure = DEFAULT_NODE_FAILURE,
        cluster_secret: bytes,
        cluster_networks: Sequence[IPv4Network] = (),
        secrets: SecretSource,
        outputs: OutputStore,
        make_gateway_link: Callable[[Gateway], GatewayLink],
        gateway_limits: ProxyLimits | None = None,
        gateway_browsers: Browsers | None = None,
    ) -> None:
        fence = Fence(boot.epoch, boot.token)
        self._progress = progress
        self._pulls: dict[str, PullProgress] = {}
        """The progress of pulls alone: what `_progress` has of an attempt may be of its outputs."""
        self.turns = RunPipeline(
            store, clock, chance, JobSubmittedPipeline(chance.new_id, snapshot.past_use)
        )
        settings = Settings(failure=node_failure, fence=fence)
        self.nodes = NodeManager(self.turns, make_link, clock, chance, settings)
        self._drains = DrainDeadlines(self.turns, clock)
        self._engines = EngineAbsences(self.turns, clock, node_failure.lost_after)
        restored = boot.restored_at is not None
        collector = LogCollector(self.turns, logs)
        output_collector = OutputCollector(self.turns, outputs, progress)
        self._strays = StrayTasks(
            self.turns, store, fence, collector, output_collector, restored=restored
        )
        clusters = Clusters(self.turns.nodes, cluster_secret, cluster_networks)
        running = JobRunningPipeline(self.turns, fence, clock, blobs, clusters, collector, secrets)
        terminating = JobTerminatingPipeline(self.turns, fence, clock, output_collector)
        self.traffic = Traffic(clock.now)
        self.routes = RouteTable()
        self.autoscaler = Autoscaler(self.turns, self.traffic, clock)
        performers = running.performers | terminating.performers
        self.gateways = GatewayManager(
            turns=self.turns,
            store=store,
            routes=self.routes,
            traffic=self.traffic,
            make_link=make_gateway_link,
            connect=self.nodes.connection,
            chance=chance,
            controller_id=boot.installation_id,
            gateways=snapshot.gateways,
            limits=gateway_limits,
            browsers=gateway_browsers,
        )
        performers |= service_replicas.performers(
            self.turns, self.traffic, self.gateways, fence, try_probe
        )
        performers |= dev_environments.performers(self.turns, self.traffic, clock)
        self._effects = EffectRunner(self.turns, self.nodes, logs, performers, clock, chance)
        self.turns.restore(snapshot.runs, snapshot.nodes, snapshot.fleets)
        self._store = store
        self._leftovers = snapshot.leftover_allocations
        self.routes.committed(tuple(self.turns.runs.values()))
        self.turns.listen(self._effects)
        self.turns.listen(self.routes)
        self.turns.listen(self.gateways)

    async def run(self) -> None:
        """Work until cancelled. Raises LeaseLost, StoreUnavailable."""
        for run_id in dict.fromkeys(place.run_id for place in self._leftovers):
            ended = await self._store.find_run(run_id)
            if ended is not None:
                self.turns.remember(ended)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.turns.run(), name="turns")
                group.create_task(self.nodes.run(self), name="nodes")
                group.create_task(self._drains.run(), name="drains")
                group.create_task(self._engines.run(), name="engines")
                group.create_task(self.autoscaler.run(), name="autoscaler")
                group.create_task(self.gateways.run(), name="gateways")
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await self._strays.close()
            await self._effects.close()

    # -- what node sessions tell (SessionListener) ------------------------------------------

    def connected(self, node_id: str) -> None:
        self._effects.repeat(node_id)
        self.gateways.node_connected(node_id)

    def task_seen(self, node_id: str, info: TaskInfo) -> None:
        if info.status is TaskStatus.PULLING and info.pull is not None:
            self._pulls[info.id] = self._progress[info.id] = info.pull
        elif info.status is not TaskStatus.PULLING:
            pull = self._pulls.pop(info.id, None)
            if pull is not None and self._progress.get(info.id) is pull:
                del self._progress[info.id]  # else it is that of a collection by now

    async def stray_task(self, node_id: str, connection: NodeConnection, info: TaskInfo) -> bool:
        return await self._strays.settle(node_id, connection, info)

    async def idle_allocations(self, node_id: str, connection: NodeConnection) -> None:
        await self._strays.release_idle(connection)


log = logging.getLogger(__name__)
LEASE_RENEWAL_SECONDS = 5.0
SHUTDOWN_SECONDS = 2.0
TIDYING_SECONDS = 3600.0


class CannotStart(Exception):
    """The controller cannot start; the message says what the operator must change."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's options."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 8700
    tls: CertificateFiles | None = None
    """None: the API is served without TLS."""
    allowed_origins: tuple[str, ...] = ()
    """The origins whose pages may use the API from a browser, beside its own."""
    join: tuple[str, int] | None = None
    """HOST and PORT at which booted nodes tell their address; None: they do not."""
    defaults: Defaults = Defaults()
    most_upload: int = MOST_BYTES
    """The limit of one upload, in bytes."""
    most_uploads_of_user: int | None = None
    """The limit of all uploads of one user, in bytes; None: ten times that of one."""
    most_outputs: int = DEFAULT_LIMIT
    """The limit of the outputs that are kept of one attempt, in bytes."""
    outputs_bucket: Bucket | None = None
    outputs_bucket_above: int = DEFAULT_ABOVE
    """Outputs of more bytes go to the bucket, if there is one."""
    database: Database | None = None
    """None: a SQLite file in the data folder."""
    keep: RetentionTimes = RetentionTimes()
    node_failure: NodeFailure = NodeFailure()
    cluster_networks: tuple[IPv4Network, ...] = ()
    """The networks in which the jobs of multi-node runs reach each other, the preferred one
    first."""
    proxy: ProxySettings = ProxySettings()
    secrets_key: Path | None = None
    """The file with the key of stored secrets; None: one in the data folder."""


async def serve(options: Options, ready: Callable[[str], None]) -> None:
    """Run the controller until SIGTERM or SIGINT. `ready` is called with the API's URL.

    Raises CannotStart, StoreError.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        work = await stack.enter_async_context(_controller(options, ready))
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if work in done:
            await work


@contextlib.asynccontextmanager
async def _controller(
    options: Options, ready: Callable[[str], None]
) -> AsyncIterator[asyncio.Task[None]]:
    data, certificate = options.data, _certificate(options)
    store = SqlStore(options.database or SqliteDatabase(data))
    logs = LogStore(data / "logs")
    outputs = OutputStore(data / "outputs", options.most_outputs)
    blobs = BlobStore(
        data / "blobs", most_bytes=options.most_upload, most_of_user=options.most_uploads_of_user
    )
    try:
        try:
            join = await _join_point(options)
            point = None if join is None else join[1]
            machinery, service, dashboard = await _open(store, logs, outputs, blobs, options, point)
        except CertificateUnusable as error:
            raise CannotStart(f"--join: {error}") from error
        except (StoreError, identity.IdentityUnusable, KeyUnusable) as error:
            raise CannotStart(str(error)) from error
        retention = Retention(
            store,
            logs,
            outputs,
            SystemClock(),
            options.keep,
            lambda: tuple(machinery.turns.runs.values()),
        )
        sampler = MetricSampler(
            service.metrics,
            service.metric_history,
            SystemClock(),
            lambda: tuple(machinery.turns.runs.values()),
        )
        work = asyncio.create_task(
            _work(
                machinery,
                store,
                blobs,
                retention,
                sampler,
                certificate,
                _uploads(options, outputs),
            ),
            name="controller",
        )
        proxy = Proxy(
            services=RegisteredServices(machinery.routes, machinery.turns),
            traffic=CountedTraffic(machinery.traffic),
            access=GateAccess(service.gate),
            connect=through_runners(machinery.nodes.connection),
            settings=options.proxy,
            prove=dashboard.opening.prove,
        )
        api = make_runner(
            service,
            shutdown_timeout=SHUTDOWN_SECONDS,
            proxy=proxy,
            origins=Origins(options.allowed_origins),
            mounts=(dashboard.mount,),
        )
        joining = make_join_runner(
            service.registrations,
            asyncio.get_running_loop().time,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        try:
            if join is not None:
                await _listen_for_nodes(joining, *join)
            ready(await _listen(api, options, certificate))
            yield work
        finally:
            await joining.cleanup()
            await api.cleanup()
            proxy.close()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
    finally:
        await asyncio.to_thread(logs.close)
        await asyncio.to_thread(outputs.close)
        await store.close()


async def _open(
    store: Store,
    logs: LogStore,
    outputs: OutputStore,
    blobs: BlobStore,
    options: Options,
    join: JoinPoint | None,
) -> tuple[Assembly, ControllerService, Dashboard]:
    clock, chance, progress = SystemClock(), system_chance(), PullsInProgress()
    boot = await store.open()
    snapshot = await store.load()
    far = sorted(node.name for node in snapshot.nodes if not node.address.local_socket)
    key = await asyncio.to_thread(identity.ssh_identity, options.data, far)
    snapshot = await identity.ensure_admin(store, snapshot, options.data, clock.now())
    vault = await asyncio.to_thread(_vault, options, snapshot)
    machinery = Assembly(
        store=store,
        boot=boot,
        snapshot=snapshot,
        logs=logs,
        progress=progress,
        make_link=lambda node: make_link(node, key),
        clock=clock,
        chance=chance,
        blobs=blobs,
        node_failure=options.node_failure,
        cluster_secret=secret_of(key),
        cluster_networks=options.cluster_networks,
        secrets=vault,
        outputs=outputs,
        make_gateway_link=lambda gateway: SocketGatewayLink(gateway, key),
        gateway_limits=_gateway_limits(options),
        gateway_browsers=Browsers(
            dashboard=options.proxy.site.public_url,
            allows_plain_http=options.proxy.site.allows_plain_http,
        ),
    )
    service = ControllerService(
        turns=machinery.turns,
        store=store,
        logs=logs,
        gate=Gate(snapshot.users, snapshot.tokens, clock, snapshot.service_keys),
        clock=clock,
        chance=chance,
        defaults=options.defaults,
        host_keys=ssh,
        progress=progress,
        blobs=blobs,
        connect=machinery.nodes.connection,
        node_key=identity.public_line(key),
        logs_kept_for=options.keep.effective_logs,
        join=join,
        traffic=machinery.traffic,
        autoscaler=machinery.autoscaler,
        metric_history=MetricHistory(options.data / "metrics"),
        vault=vault,
        outputs=outputs,
        outputs_kept_for=options.keep.effective_outputs,
        terminal_secret=secret_of(key),
        gateways=machinery.gateways,
        routes=machinery.routes,
        service_url=options.proxy.url_of,
    )
    now = asyncio.get_running_loop().time
    dashboard = Dashboard(
        service,
        session_key(secret_of(key)),
        now,
        site=options.proxy.site,
        service_domain=options.proxy.domain,
    )
    return machinery, service, dashboard


def _vault(options: Options, snapshot: Snapshot) -> Vault:
    """Blocking. Raises KeyUnusable."""
    path = options.secrets_key or options.data / SECRETS_KEY_NAME
    return Vault(KeyFile.open(path, sealed=len(snapshot.secrets)), snapshot.secrets)


def _gateway_limits(options: Options) -> ProxyLimits:
    limits = options.proxy.limits
    return ProxyLimits(
        hold=limits.hold_seconds, timeout=limits.answer_seconds, most_body=limits.most_body
    )


def make_link(node: Node, key: asyncssh.SSHKey) -> NodeLink:
    if node.address.local_socket:
        return LocalLink(node.address.shim_socket)
    return SshLink(node.address, key)


async def _join_point(options: Options) -> tuple[ssl.SSLContext, JoinPoint] | None:
    """Raises CertificateUnusable."""
    if options.join is None:
        return None
    host, port = options.join
    context, fingerprint = await asyncio.to_thread(own_certificate, options.data)
    return context, JoinPoint(host=host, port=port, certificate=fingerprint)


async def _listen_for_nodes(
    joining: web.AppRunner, context: ssl.SSLContext, point: JoinPoint
) -> None:
    """On that address where it is this machine's, else on all: nodes may know another one."""
    await joining.setup()
    try:
        try:
            await web.TCPSite(joining, point.host, point.port, ssl_context=context).start()
        except OSError as error:
            if not isinstance(error, socket.gaierror) and error.errno != errno.EADDRNOTAVAIL:
                raise
            await web.TCPSite(joining, None, point.port, ssl_context=context).start()
    except OSError as error:
        raise CannotStart(
            f"cannot listen on {point.host}:{point.port} ({why_unreachable(error)}); give another "
            "address with --join HOST:PORT"
        ) from error


def _certificate(options: Options) -> ServerCertificate | None:
    try:
        return None if options.tls is None else ServerCertificate(options.tls)
    except CertificateUnusable as error:
        raise CannotStart(f"--tls-cert, --tls-key: {error}") from error


async def _listen(
    api: web.AppRunner, options: Options, certificate: ServerCertificate | None
) -> str:
    await api.setup()
    context = None if certificate is None else certificate.context
    site = web.TCPSite(api, options.host, options.port, ssl_context=context)
    try:
        await site.start()
    except OSError as error:
        raise CannotStart(
            f"cannot listen on {options.host}:{options.port} ({why_unreachable(error)}); "
            "give another address with --listen HOST:PORT"
        ) from error
    host, port = api.addresses[0][:2]
    if context is None and not ip_address(host).is_loopback:
        log.warning(
            "everybody between here and a user can read tokens and logs: %s:%s has no TLS; give"
            " --tls-cert and --tls-key, or listen on 127.0.0.1 behind a reverse proxy",
            host,
            port,
        )
    shown = f"[{host}]" if ":" in host else host
    return f"{'http' if context is None else 'https'}://{shown}:{port}"


async def _work(
    machinery: Assembly,
    store: Store,
    blobs: BlobStore,
    retention: Retention,
    sampler: MetricSampler,
    certificate: ServerCertificate | None,
    uploads: OutputUploads | None,
) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(machinery.run(), name="machinery")
            group.create_task(_keep_lease(store), name="lease")
            group.create_task(_tidy_blobs(machinery, blobs), name="blobs")
            group.create_task(retention.run(), name="retention")
            group.create_task(sampler.run(), name="metrics")
            if certificate is not None:
                group.create_task(certificate.watch(), name="certificate")
            if uploads is not None:
                group.create_task(uploads.run(), name="outputs")
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _uploads(options: Options, outputs: OutputStore) -> OutputUploads | None:
    if options.outputs_bucket is None:
        return None
    above = options.outputs_bucket_above
    return OutputUploads(outputs, options.outputs_bucket, above, system_chance().jitter)


async def _tidy_blobs(machinery: Assembly, blobs: BlobStore) -> None:
    while True:
        live = machinery.turns.runs.values()
        needed = {blob for state in live for job in state.jobs for blob in job.spec.blobs}
        try:
            await blobs.sweep(needed)
        except OSError as error:
            log.warning("expired uploads could not be removed: %s", error)
        await asyncio.sleep(TIDYING_SECONDS)


async def _keep_lease(store: Store) -> None:
    while True:
        await asyncio.sleep(LEASE_RENEWAL_SECONDS)
        try:
            await store.renew_lease()
        except LeaseLost:
            raise
        except StoreUnavailable as error:
            log.warning("the lease could not be renewed: %s", error)
