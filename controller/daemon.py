"""The controller as a process: it opens what it needs, serves until it is stopped, and closes all.

Begin with `serve`. The working parts are joined in `assembly`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import math
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from ipaddress import IPv4Network, ip_address
from pathlib import Path

import asyncssh
import msgspec
from aiohttp import web

from common.links import host_keys
from common.links.errors import why_unreachable
from common.proxy.entry import Proxy
from common.proxy.entry import Settings as ProxySettings
from controller import following, identity
from controller.api.app import make_runner
from controller.api.http.origins import Origins
from controller.api.machines.join import make_join_runner
from controller.assembly import Assembly, NodeSettings
from controller.blob_bucket import BlobBucket
from controller.blobs import MAX_BYTES, BlobStore
from controller.clock import SystemClock, system_chance
from controller.clouds.base import Cloud
from controller.clouds.catalog import Catalog
from controller.gateways.link import SocketGatewayLink
from controller.gateways.manager import Settings as GatewaySettings
from controller.lifecycle.inventory import NodeFailure, Spending
from controller.lifecycle.machines.model import Machine
from controller.lifecycle.model import Node, RunState
from controller.links.base import NodeLink
from controller.links.clients import LocalLink, SshLink
from controller.logs.parts import LogBucket
from controller.logs.store import LogStore
from controller.machines.manager import MachineSettings
from controller.metric_bucket import MetricBucket
from controller.metric_history import MetricHistory
from controller.outputs.bucket import Bucket, BucketError
from controller.outputs.own_bucket import BucketOfAnother, OwnBucket
from controller.outputs.store import DEFAULT_LIMIT, OutputStore
from controller.outputs.uploads import DEFAULT_ABOVE, OutputUploads
from controller.pipelines.performers.cluster import secret_of
from controller.provider_config import (
    AwsProvider,
    GcpProvider,
    HetznerProvider,
    ProviderConfig,
    QemuProvider,
)
from controller.proxy.registered import (
    CountedTraffic,
    GateAccess,
    RegisteredServices,
    through_runners,
)
from controller.relay import Relay
from controller.retention import Retention, RetentionTimes
from controller.service import ControllerService, LiveParts, Stores
from controller.service import Settings as ServiceSettings
from controller.service.accounts.users import Gate
from controller.service.jobs.metric_sampler import MetricSampler
from controller.service.machines.gateways import GatewayAccess
from controller.service.machines.user_data import JoinPoint, UserData, render
from controller.service.runs.progress import PullsInProgress
from controller.store import peers
from controller.store.base import BEFORE_BUCKET, Boot, Snapshot, Store
from controller.store.errors import LeaseHeld, LeaseLost, StoreError, StoreUnavailable
from controller.store.lease import LEASE_SECONDS
from controller.store.peers import Peers
from controller.store.sql import Database, SqlStore
from controller.store.sqlite import SqliteDatabase
from controller.tls import CertificateFiles, CertificateUnusable, ServerCertificate, own_certificate
from controller.traffic.routes import RouteTable
from controller.vault import SECRETS_KEY_NAME, KeyFile, KeyUnusable, Vault
from controller.web.app import Dashboard, session_key
from fairlead.configuration.plan import Defaults
from fairlead.wire.gateway import Browsers, ProxyLimits

log = logging.getLogger(__name__)
# A sixth of the lease's time: a slow disk or a database that restarts costs no lease.
LEASE_RENEWAL_SECONDS = 5.0
SHARED_RENEWAL_SECONDS = 1.0
SHUTDOWN_SECONDS = 2.0
SHARED_SHUTDOWN_SECONDS = 0.5
"""Seconds for the requests in progress, while the next leader waits."""
SURE_SECONDS = 1.0
"""A change that comes later than this before the lease's end is refused."""
TIDYING_SECONDS = 3600.0
METRICS_NAME = "metrics"
BUCKET_SECONDS = 3.0
"""A bucket that does not answer so long holds up no leader."""


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
    most_upload: int = MAX_BYTES
    """The limit of one upload, in bytes."""
    most_uploads_of_user: int | None = None
    """The limit of all uploads of one user, in bytes; None: ten times that of one."""
    most_outputs: int = DEFAULT_LIMIT
    """The limit of the outputs that are kept of one attempt, in bytes."""
    outputs_bucket: Bucket | None = None
    outputs_bucket_above: int = DEFAULT_ABOVE
    """Outputs of more bytes go to the bucket, if there is one."""
    logs_bucket: Bucket | None = None
    """Where logs are stored; None: in the data folder."""
    bucket: Bucket | None = None
    """Of this installation alone, for uploads, outputs and the history of use; None: they are in
    the data folder."""
    database: Database | None = None
    """None: a SQLite file in the data folder."""
    keep: RetentionTimes = RetentionTimes()
    node_failure: NodeFailure = NodeFailure()
    cluster_networks: tuple[IPv4Network, ...] = ()
    """The networks in which the jobs of multi-node runs reach each other, the preferred one
    first."""
    providers: Mapping[str, ProviderConfig] = {}
    """The providers of machines, by name."""
    spending: Spending = Spending()
    proxy: ProxySettings = ProxySettings()
    secrets_key: Path | None = None
    """The file with the key of stored secrets; None: one in the data folder."""
    peers: Peers | None = None
    """This controller among those of its database; None: it is the only one."""

    @property
    def secrets_key_file(self) -> Path:
        return self.secrets_key or self.data / SECRETS_KEY_NAME


class Leading:
    """Whether this controller surely leads: its lease, of these seconds, is not about to end."""

    def __init__(self, lease_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._seconds = lease_seconds - SURE_SECONDS
        self._renewed_at = -math.inf

    def renewed(self, at: float) -> None:
        self._renewed_at = at

    def is_sure(self) -> bool:
        return self.now() - self._renewed_at < self._seconds


class CannotStart(Exception):
    """The controller cannot start; the message says what the operator must change."""


async def serve(options: Options, ready: Callable[[str], None]) -> None:
    """Run the controller until SIGTERM or SIGINT. `ready` is called with the API's URL.

    Raises CannotStart, StoreError.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.peers is not None:
        await _among_peers(options, options.peers, ready, stop)
        return
    async with _controller(options, ready) as work:
        await _until_stopped(work, stop)


async def _until_stopped(work: asyncio.Task[None], stop: asyncio.Event) -> None:
    stopped = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if work in done:
        await work


async def _among_peers(
    options: Options, peers: Peers, ready: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Carry connections to the leader until it is gone, then lead. Raises as `serve` does."""
    peers.keys = await asyncio.to_thread(_fingerprint, options)
    peers.installation_id = await asyncio.to_thread(_installation_of, options)
    wait = following.Wait(peers, stop)
    await wait.begin()
    if peers.installation_id is not None:
        await asyncio.to_thread(_tie, options, peers.installation_id)
    async with contextlib.AsyncExitStack() as closing:
        listening = await _listening(options)
        closing.callback(listening.close)
        closing.push_async_callback(asyncio.to_thread, peers.leave)
        relay = Relay()
        closing.push_async_callback(relay.close)
        await relay.listen(listening)
        ready(peers.url)

        async def take_back() -> None:
            relay.lead_to(None)
            await relay.listen(listening)

        while await wait.until_it_may_lead(relay):
            try:
                async with _controller(options, relay.hand_over, listening, take_back) as work:
                    log.info("this controller leads now")
                    await _until_stopped(work, stop)
            except CannotStart as error:
                # Another one was faster, or the leader is of a version that shows itself nowhere;
                # or a leader whose machine vanished still keeps the lease's row.
                if not isinstance(error.__cause__, LeaseHeld | StoreUnavailable):
                    raise
                log.info("it can't lead yet: %s", error)
            else:
                await wait.until_successor_is_known(relay)
                return


async def _listening(options: Options) -> socket.socket:
    """Return a socket that listens at the API's address. Raises CannotStart."""

    def bound() -> socket.socket:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        return socket.create_server((options.host, options.port), family=family, backlog=1024)

    try:
        return await asyncio.to_thread(bound)
    except OSError as error:
        raise _cannot_listen(options, error) from error


@contextlib.asynccontextmanager
async def _controller(
    options: Options,
    ready: Callable[[str], None],
    listening: socket.socket | None = None,
    take_back: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve within this block; yield the work, which ends only if it fails. `listening`: serve the
    API there; `take_back` listens there once it is not served any more."""
    certificate = _certificate(options)
    leading = Leading(math.inf if options.peers is None else peers.LEASE_SECONDS)
    ending = SHUTDOWN_SECONDS if options.peers is None else SHARED_SHUTDOWN_SECONDS
    async with contextlib.AsyncExitStack() as closing:
        # The stack closes in reverse: first what listens, last the stores that all others use.
        stores = await _stores(options, closing)
        leading.renewed(leading.now())
        opened = await _open(options, stores, leading, closing)
        work = asyncio.create_task(_work(options, opened, certificate, leading), name="controller")
        closing.push_async_callback(_end, work)
        proxy = _proxy(options, opened)
        closing.callback(proxy.close)
        api = make_runner(
            opened.service,
            shutdown_timeout=ending,
            proxy=proxy,
            origins=Origins(options.allowed_origins),
            mounts=(opened.dashboard.mount,),
            leads=leading.is_sure,
        )
        closing.push_async_callback(api.cleanup)
        if opened.join is not None:
            now = asyncio.get_running_loop().time
            registrations = opened.service.registrations
            joining = make_join_runner(registrations, now, shutdown_timeout=ending)
            closing.push_async_callback(joining.cleanup)
            await _listen_for_nodes(joining, opened.join)
        ready(await _listen(api, options, certificate, listening))
        if take_back is not None:
            closing.push_async_callback(_leave_address, api, take_back)
        yield work


async def _leave_address(api: web.AppRunner, take_back: Callable[[], Awaitable[None]]) -> None:
    """Leave what comes from now on to the next leader, and go on with what has begun."""
    for site in api.sites:
        await site.stop()
    await take_back()


async def _end(work: asyncio.Task[None]) -> None:
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def _stores(options: Options, closing: contextlib.AsyncExitStack) -> Stores:
    """Return the stores, which `closing` closes."""
    data = options.data
    stores = Stores(
        store=SqlStore(
            options.database or SqliteDatabase(data),
            lease_seconds=LEASE_SECONDS if options.peers is None else peers.LEASE_SECONDS,
            installation_id=await asyncio.to_thread(_installation_of, options),
        ),
        logs=LogStore(data / "logs"),
        outputs=OutputStore(data / "outputs", options.most_outputs),
        blobs=BlobStore(
            data / "blobs",
            most_bytes=options.most_upload,
            most_of_user=options.most_uploads_of_user,
        ),
    )
    closing.push_async_callback(stores.store.close)
    closing.push_async_callback(asyncio.to_thread, stores.outputs.close)
    closing.push_async_callback(asyncio.to_thread, stores.logs.close)
    return stores


class _Join(msgspec.Struct, frozen=True):
    """Where nodes tell their address, and the TLS with which that is served."""

    point: JoinPoint
    context: ssl.SSLContext


class _Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The controller over its opened stores; nothing works or listens yet."""

    stores: Stores
    assembly: Assembly
    service: ControllerService
    dashboard: Dashboard
    metric_bucket: MetricBucket | None
    join: _Join | None


async def _open(
    options: Options, stores: Stores, leading: Leading, closing: contextlib.AsyncExitStack
) -> _Opened:
    """Raises CannotStart."""
    try:
        join = await _join_point(options)
        known = await _known(options, stores.store, leading)
    except CertificateUnusable as error:
        raise CannotStart(f"--join: {error}") from error
    except (StoreError, identity.IdentityUnusable, KeyUnusable) as error:
        raise CannotStart(str(error)) from error
    own = await _use_buckets(options, stores, known.boot.installation_id, closing)
    snapshot, clock, chance = known.snapshot, SystemClock(), system_chance()
    require_providers(options, snapshot)
    progress, routes = PullsInProgress(), RouteTable()
    gate = Gate(snapshot.users, snapshot.tokens, clock, snapshot.service_keys)
    assembly = Assembly(
        stores,
        known.boot,
        snapshot,
        clock=clock,
        chance=chance,
        progress=progress,
        routes=routes,
        nodes=_node_settings(options, known),
        gateways=_gateway_settings(options, known.key, GatewayAccess(gate, routes)),
        machines=_machine_settings(options, known.key, None if join is None else join.point),
    )
    history = MetricHistory(options.data / METRICS_NAME)
    service = ControllerService(
        stores,
        _live_parts(assembly, progress),
        _service_settings(options, known.key, None if join is None else join.point),
        gate=gate,
        vault=known.vault,
        metric_history=history,
        host_keys=host_keys,
        clock=clock,
        chance=chance,
    )
    dashboard = Dashboard(
        service,
        session_key(secret_of(known.key)),
        asyncio.get_running_loop().time,
        site=options.proxy.site,
        service_domain=options.proxy.domain,
    )
    return _Opened(
        stores=stores,
        assembly=assembly,
        service=service,
        dashboard=dashboard,
        metric_bucket=_metric_bucket(options, history, own, known.boot),
        join=join,
    )


def _metric_bucket(
    options: Options, history: MetricHistory, own: OwnBucket | None, boot: Boot
) -> MetricBucket | None:
    if own is None:
        return None
    return MetricBucket(own, history, options.data / METRICS_NAME, f"{boot.token:x}")


async def _use_buckets(
    options: Options, stores: Stores, installation_id: str, closing: contextlib.AsyncExitStack
) -> OwnBucket | None:
    """Return the bucket for everything, if there is one. Raises CannotStart."""
    own = None
    if options.bucket is not None:
        own = OwnBucket(options.bucket, installation_id)
        closing.callback(own.close)
        try:
            async with asyncio.timeout(BUCKET_SECONDS):
                await own.ask(own.verify)
        except BucketOfAnother as error:
            raise CannotStart(f"--bucket: {error}") from error
        except (BucketError, TimeoutError) as error:
            # Its owner is looked for again before anything is read or written there.
            why = str(error) or f"no answer within {BUCKET_SECONDS:g} s"
            log.warning("the bucket cannot be used, and what goes there waits: %s", why)
        stores.blobs.use(BlobBucket(own))
        if options.outputs_bucket is None:
            stores.outputs.use(own)
    if options.logs_bucket is not None:
        stores.logs.use(LogBucket(options.logs_bucket, installation_id))
    return own


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller knows once its store is open."""

    boot: Boot
    snapshot: Snapshot
    key: asyncssh.SSHKey
    vault: Vault


async def _known(options: Options, store: Store, leading: Leading) -> _Known:
    """Raises StoreError, IdentityUnusable, KeyUnusable."""
    # It takes the lease: only its holder may make keys and tokens in the data folder.
    boot = await store.open()
    # A long history may take longer to load than the lease lasts, at this controller and at the
    # next one, and none would ever lead.
    keeping = asyncio.create_task(_keep_lease(store, _renewal_seconds(options), leading))
    try:
        return await _loaded(options, store, boot)
    finally:
        # A lease that was lost is noticed by the first write.
        await _end(keeping)


async def _loaded(options: Options, store: Store, boot: Boot) -> _Known:
    """Raises StoreError, IdentityUnusable, KeyUnusable."""
    await asyncio.to_thread(identity.tie, options.data, boot.installation_id)
    snapshot = await store.load()
    far = sorted(node.name for node in snapshot.nodes if not node.address.local_socket)
    key = await asyncio.to_thread(identity.ssh_identity, options.data, far)
    snapshot = await identity.ensure_admin(store, snapshot, options.data, SystemClock().now())
    vault = await asyncio.to_thread(_vault, options, snapshot)
    if options.peers is not None:
        # The first leader has just made its keys: the others compare theirs with them.
        options.peers.keys = await asyncio.to_thread(_fingerprint, options)
    return _Known(boot=boot, snapshot=snapshot, key=key, vault=vault)


def _fingerprint(options: Options) -> str | None:
    """Return `Peer.keys` of this controller. Blocking. Raises CannotStart."""
    try:
        keys = identity.fingerprint(options.data, options.secrets_key_file)
    except identity.IdentityUnusable as error:
        raise CannotStart(str(error)) from error
    buckets = [one for one in (options.logs_bucket, options.bucket) if one is not None]
    if keys is None or not buckets:
        return keys
    # One of logs alone is shown as earlier versions do.
    places = b"".join(map(msgspec.json.encode, buckets))
    place = hashlib.sha256(places).hexdigest()[:8]
    return f"{keys}{BEFORE_BUCKET}{place}"


def _tie(options: Options, installation_id: str) -> None:
    """Blocking. Raises CannotStart."""
    try:
        identity.tie(options.data, installation_id)
    except identity.IdentityUnusable as error:
        raise CannotStart(str(error)) from error


def _installation_of(options: Options) -> str | None:
    """Blocking. Raises CannotStart."""
    try:
        return identity.installation_of(options.data)
    except identity.IdentityUnusable as error:
        raise CannotStart(str(error)) from error


def _vault(options: Options, snapshot: Snapshot) -> Vault:
    """Blocking. Raises KeyUnusable."""
    key = KeyFile.open(options.secrets_key_file, sealed=len(snapshot.secrets))
    vault = Vault(key, snapshot.secrets)
    if unopened := vault.unopened():
        # No refusal: after its key was lost, an installation goes on with a new one.
        log.warning(
            "%s does not open %d of %d stored secrets, and jobs that name them can't start: if it "
            "is the key of another installation, put the right one there; else store them again",
            options.secrets_key_file,
            unopened,
            len(snapshot.secrets),
        )
    return vault


def _node_settings(options: Options, known: _Known) -> NodeSettings:
    return NodeSettings(
        make_link=lambda node: make_link(node, known.key),
        secrets=known.vault,
        failure=options.node_failure,
        cluster_secret=secret_of(known.key),
        cluster_networks=options.cluster_networks,
    )


def require_providers(options: Options, snapshot: Snapshot) -> None:
    """Raise CannotStart when machines of a provider, or of one of its regions, live that the file
    does not name: nothing could end them."""
    for machine in snapshot.machines:
        if not machine.is_live:
            continue
        provider, region = machine.offer.provider, machine.offer.region
        config = options.providers.get(provider)
        if config is None:
            missing, where = f"provider {provider}", "`providers`"
        elif config.regions is not None and region not in config.regions:
            missing, where = f"region {region} of provider {provider}", f"providers.{provider}"
        else:
            continue
        raise CannotStart(
            f"machine {machine.name} lives at {missing}, which --config does not "
            f"name: put it back under {where}, until `fairlead machine list` is empty"
        )


def make_cloud(name: str, config: ProviderConfig, data: Path) -> Cloud:
    """Return a provider. Only the modules of those that the controller's file names are loaded.
    `data`: the controller's folder, where the catalogs that were read are kept.

    Raises CannotStart.
    """
    if isinstance(config, AwsProvider):
        with _library_of(name, "aws"):
            from controller.clouds.aws import AwsCloud
        return AwsCloud(name, config, catalog=_catalog("aws", name, data))
    if isinstance(config, GcpProvider):
        with _library_of(name, "gcp"):
            from controller.clouds.gcp.cloud import GcpCloud
        return GcpCloud(name, config, catalog=_catalog("gcp", name, data))
    if isinstance(config, HetznerProvider):
        from controller.clouds.hetzner import HetznerCloud

        return HetznerCloud(name, config)
    if isinstance(config, QemuProvider):
        from controller.clouds.qemu import QemuCloud

        return QemuCloud(name, config)
    from controller.clouds.base import Abilities
    from controller.clouds.exec import ExecCloud

    abilities = Abilities(idempotent=config.idempotent, visible_after=config.visible_after)
    return ExecCloud(name, config.command, abilities=abilities, timeout=config.timeout)


def _catalog(cloud: str, provider: str, data: Path) -> Catalog:
    return Catalog(cloud, data / "catalogs" / f"{provider}.json")


@contextlib.contextmanager
def _library_of(provider: str, extra: str) -> Iterator[None]:
    """Raises CannotStart when an import lacks a package of this extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise CannotStart(
            f"providers.{provider}: machines of type {extra} need the package {error.name}: "
            f"install 'fairlead-daemons[{extra}]' with the controller"
        ) from error


def _machine_settings(
    options: Options, key: asyncssh.SSHKey, join: JoinPoint | None
) -> MachineSettings | None:
    """None: the file names no provider, and nothing of machines is loaded or runs."""
    if not options.providers:
        return None
    from controller.machines import boot_data

    secret = secret_of(key)

    def user_data(machine: Machine) -> str:
        private, public = boot_data.host_key(secret, machine.id)
        return render(
            UserData(
                name=machine.name,
                fleet=machine.fleet,
                expires_at=None,
                leash=machine.leash,
                fresh_host_key=True,
                host_private_key=private,
                host_public_key=public,
                tunnel_key=identity.public_line(key),
                join=join,
                token=None if join is None else boot_data.join_token(secret, machine.id),
            )
        )

    return MachineSettings(
        clouds={
            name: make_cloud(name, config, options.data)
            for name, config in options.providers.items()
        },
        boot_data=user_data,
        pin=lambda machine_id: boot_data.pin(secret, machine_id),
        spending=options.spending,
    )


def make_link(node: Node, key: asyncssh.SSHKey) -> NodeLink:
    if node.address.local_socket:
        return LocalLink(node.address.shim_socket)
    return SshLink(node.address, key)


def _gateway_settings(
    options: Options, key: asyncssh.SSHKey, access: GatewayAccess
) -> GatewaySettings:
    """What holds for the proxy of this controller holds at gateways too."""
    limits, site = options.proxy.limits, options.proxy.site
    return GatewaySettings(
        make_link=lambda gateway: SocketGatewayLink(gateway, key),
        answers=access.answer,
        limits=ProxyLimits(
            hold=limits.hold_seconds, timeout=limits.answer_seconds, most_body=limits.most_body
        ),
        browsers=Browsers(dashboard=site.public_url, allows_plain_http=site.allows_plain_http),
    )


def _live_parts(assembly: Assembly, progress: PullsInProgress) -> LiveParts:
    return LiveParts(
        pipeline=assembly.pipeline,
        connect=assembly.nodes.connection,
        progress=progress,
        routes=assembly.routes,
        traffic=assembly.traffic,
        autoscaler=assembly.autoscaler,
        gateways=assembly.gateways,
        machines=assembly.machines,
    )


def _service_settings(
    options: Options, key: asyncssh.SSHKey, join: JoinPoint | None
) -> ServiceSettings:
    return ServiceSettings(
        defaults=options.defaults,
        logs_kept_for=options.keep.effective_logs,
        outputs_kept_for=options.keep.effective_outputs,
        service_url=options.proxy.url_of,
        node_key=identity.public_line(key),
        join=join,
        terminal_secret=secret_of(key),
    )


def _proxy(options: Options, opened: _Opened) -> Proxy:
    assembly = opened.assembly
    return Proxy(
        services=RegisteredServices(assembly.routes, assembly.pipeline),
        traffic=CountedTraffic(assembly.traffic),
        access=GateAccess(opened.service.gate),
        connect=through_runners(assembly.nodes.connection),
        settings=options.proxy,
        prove=opened.dashboard.opening.prove,
    )


async def _join_point(options: Options) -> _Join | None:
    """Raises CertificateUnusable."""
    if options.join is None:
        return None
    host, port = options.join
    context, fingerprint = await asyncio.to_thread(own_certificate, options.data)
    return _Join(JoinPoint(host=host, port=port, certificate=fingerprint), context)


async def _listen_for_nodes(joining: web.AppRunner, join: _Join) -> None:
    """On that address where it is this machine's, else on all: nodes may know another one."""
    point, context = join.point, join.context
    await joining.setup()
    try:
        try:
            await web.TCPSite(joining, point.host, point.port, ssl_context=context).start()
        except OSError as error:
            # Behind address translation, the address that nodes use is not this machine's.
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


def _cannot_listen(options: Options, error: OSError) -> CannotStart:
    return CannotStart(
        f"cannot listen on {options.host}:{options.port} ({why_unreachable(error)}); "
        "give another address with --listen HOST:PORT"
    )


async def _listen(
    api: web.AppRunner,
    options: Options,
    certificate: ServerCertificate | None,
    listening: socket.socket | None,
) -> str:
    await api.setup()
    context = None if certificate is None else certificate.context
    if listening is None:
        site: web.BaseSite = web.TCPSite(api, options.host, options.port, ssl_context=context)
    else:
        # A copy: connections that wait in the socket's queue are not lost between the two servers.
        site = web.SockSite(api, listening.dup(), ssl_context=context)
    try:
        await site.start()
    except OSError as error:
        raise _cannot_listen(options, error) from error
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
    options: Options, opened: _Opened, certificate: ServerCertificate | None, leading: Leading
) -> None:
    stores, service = opened.stores, opened.service
    pipeline, clock = opened.assembly.pipeline, SystemClock()

    def live_runs() -> tuple[RunState, ...]:
        return tuple(pipeline.runs.values())

    retention = Retention(stores.store, stores.logs, stores.outputs, clock, options.keep, live_runs)
    sampler = MetricSampler(
        service.metrics, service.metric_history, clock, live_runs, bucket=opened.metric_bucket
    )
    uploads = _uploads(options, stores.outputs)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(opened.assembly.run(), name="assembly")
            every = _renewal_seconds(options)
            group.create_task(_keep_lease(stores.store, every, leading), name="lease")
            group.create_task(_tidy_blobs(opened.assembly, stores), name="blobs")
            group.create_task(retention.run(), name="retention")
            group.create_task(sampler.run(), name="metrics")
            group.create_task(stores.logs.join_ended(), name="logs")
            if certificate is not None:
                group.create_task(certificate.watch(), name="certificate")
            if uploads is not None:
                group.create_task(uploads.run(), name="outputs")
    except BaseExceptionGroup as errors:
        # A TaskGroup wraps its error even if it is a single one, and callers name what they catch.
        raise errors.exceptions[0] from None


def _uploads(options: Options, outputs: OutputStore) -> OutputUploads | None:
    target, above = options.outputs_bucket, options.outputs_bucket_above
    if target is None:
        # Those from before there was a bucket; later ones are there when they count as collected.
        target, above = options.bucket, -1
    if target is None:
        return None
    return OutputUploads(outputs, target, above, system_chance().jitter)


async def _tidy_blobs(assembly: Assembly, stores: Stores) -> None:
    """Raises LeaseLost."""

    def needed() -> set[str]:
        live = assembly.pipeline.runs.values()
        return {blob for state in live for job in state.jobs for blob in job.spec.blobs}

    while True:
        try:
            await stores.blobs.sweep(needed, stores.store.renew_lease)
        except (OSError, StoreUnavailable) as error:
            log.warning("expired uploads could not be removed: %s", error)
        await asyncio.sleep(TIDYING_SECONDS)


def _renewal_seconds(options: Options) -> float:
    return LEASE_RENEWAL_SECONDS if options.peers is None else SHARED_RENEWAL_SECONDS


async def _keep_lease(store: Store, every: float, leading: Leading) -> None:
    while True:
        await asyncio.sleep(every)
        # Before the request: the lease counts from when the database renews it, at the earliest.
        began = leading.now()
        try:
            await store.renew_lease()
            leading.renewed(began)
        except LeaseLost:
            raise
        # No reason to stop: each write verifies the lease, so one that was lost meanwhile is found.
        except StoreUnavailable as error:
            log.warning("the lease could not be renewed: %s", error)
