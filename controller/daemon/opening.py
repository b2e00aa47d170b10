"""Opens the controller: joins its stores, its working parts, its services and the dashboard."""

from __future__ import annotations

import asyncio
import contextlib

import asyncssh
import msgspec

from common.links import host_keys
from controller import identity
from controller.assembly import Assembly, NodeSettings
from controller.clock import Chance, SystemClock, system_chance
from controller.daemon.boot import Known, take_lead
from controller.daemon.gateways import gateway_settings
from controller.daemon.lease import Leading, lease_kept
from controller.daemon.listening import Join, join_point
from controller.daemon.options import CannotStart, Options
from controller.daemon.providers import (
    Catalogs,
    machine_settings,
    require_providers,
    warn_of_homeless_orphans,
    warn_of_unknown_users,
)
from controller.daemon.stores import METRICS_NAME, metric_bucket, open_stores, own_bucket
from controller.disk import Disk
from controller.lifecycle.model import Node
from controller.links.base import NodeLink
from controller.links.clients import LocalLink, SshLink
from controller.metric_bucket import MetricBucket
from controller.metric_history import MetricHistory
from controller.outputs.own_bucket import OwnBucket
from controller.pipelines.performers.cluster import secret_of
from controller.service import ControllerService, LiveParts, Stores
from controller.service import Settings as ServiceSettings
from controller.service.accounts.users import Gate
from controller.service.machines.gateways import GatewayAccess
from controller.service.machines.user_data import JoinPoint
from controller.service.runs.progress import PullsInProgress
from controller.shipping.positions import Positions
from controller.shipping.shipper import Shipper
from controller.store.base import Store
from controller.store.errors import StoreError
from controller.tls import CertificateUnusable
from controller.traffic.routes import RouteTable
from controller.vault import KeyUnusable
from controller.web.app import Dashboard, session_key


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The controller over its opened stores; nothing works or listens yet."""

    stores: Stores
    assembly: Assembly
    service: ControllerService
    dashboard: Dashboard
    shipper: Shipper | None
    metric_bucket: MetricBucket | None
    join: Join | None


async def open_parts(
    options: Options,
    store: Store,
    leading: Leading,
    closing: contextlib.AsyncExitStack,
    disk: Disk | None = None,
) -> Opened:
    """`disk`: the one of the data folder; None: nobody measures it. Raises CannotStart."""
    join, known = await _begun(options, store, leading)
    point = None if join is None else join.point
    installation_id = known.boot.installation_id
    # A bucket that does not answer is waited for longer than the lease would have left.
    async with lease_kept(options, store, leading):
        own = await own_bucket(options, installation_id, closing)
    snapshot, clock, chance = known.snapshot, SystemClock(), system_chance()
    shipper = _shipper(options, own, known, chance)
    stores = open_stores(options, store, own, installation_id, closing, shipper)
    require_providers(options, snapshot)
    warn_of_unknown_users(options, snapshot)
    warn_of_homeless_orphans(options, snapshot)
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
        gateways=gateway_settings(options, known.key, GatewayAccess(gate, routes)),
        machines=machine_settings(options, known.key, point, Catalogs(store, snapshot.catalogs)),
        listeners=() if shipper is None else (shipper,),
    )
    history = MetricHistory(options.data / METRICS_NAME)
    service = ControllerService(
        stores,
        _live_parts(assembly, progress, shipper, disk),
        _service_settings(options, known.key, point),
        gate=gate,
        vault=known.vault,
        metric_history=history,
        host_keys=host_keys,
        clock=clock,
        chance=chance,
    )
    return Opened(
        stores=stores,
        assembly=assembly,
        service=service,
        dashboard=_dashboard(options, known.key, service),
        shipper=shipper,
        metric_bucket=metric_bucket(options, history, own, known.boot),
        join=join,
    )


async def _begun(options: Options, store: Store, leading: Leading) -> tuple[Join | None, Known]:
    """Raises CannotStart."""
    try:
        return await join_point(options), await take_lead(options, store, leading)
    except CertificateUnusable as error:
        raise CannotStart(f"--join: {error}") from error
    except (StoreError, identity.IdentityUnusable, KeyUnusable) as error:
        raise CannotStart(str(error)) from error


def _node_settings(options: Options, known: Known) -> NodeSettings:
    return NodeSettings(
        make_link=lambda node: _make_link(node, known.key),
        secrets=known.vault,
        failure=options.node_failure,
        cluster_secret=secret_of(known.key),
        cluster_networks=options.cluster_networks,
    )


def _make_link(node: Node, key: asyncssh.SSHKey) -> NodeLink:
    if node.address.local_socket:
        return LocalLink(node.address.shim_socket)
    return SshLink(node.address, key)


def _dashboard(options: Options, key: asyncssh.SSHKey, service: ControllerService) -> Dashboard:
    return Dashboard(
        service,
        session_key(secret_of(key)),
        asyncio.get_running_loop().time,
        site=options.proxy.site,
        service_domain=options.proxy.domain,
    )


def _shipper(
    options: Options, own: OwnBucket | None, known: Known, chance: Chance
) -> Shipper | None:
    if options.receivers is None:
        return None
    fence = (known.boot.epoch, known.boot.token)
    positions = Positions(options.data / "shipped", own, fence)
    return Shipper(options.receivers, known.snapshot.runs, positions, chance.jitter)


def _live_parts(
    assembly: Assembly, progress: PullsInProgress, shipper: Shipper | None, disk: Disk | None
) -> LiveParts:
    figures = [] if shipper is None else [shipper.families]
    if disk is not None:
        figures.append(disk.families)
    return LiveParts(
        pipeline=assembly.pipeline,
        connect=assembly.nodes.connection,
        progress=progress,
        routes=assembly.routes,
        traffic=assembly.traffic,
        autoscaler=assembly.autoscaler,
        gateways=assembly.gateways,
        machines=assembly.machines,
        figures=figures,
        disk=disk,
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
