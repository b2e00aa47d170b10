"""The proxy of this controller, and the settings of those at gateways."""

from __future__ import annotations

import asyncssh

from common.proxy.entry import Proxy
from controller.assembly import Assembly
from controller.daemon.options import Options
from controller.gateways.link import SocketGatewayLink
from controller.gateways.manager import Settings as GatewaySettings
from controller.pipelines.performers.cluster import secret_of, ways_key
from controller.proxy.registered import (
    CountedTraffic,
    GateAccess,
    RegisteredServices,
    through_runners,
)
from controller.proxy.sealed import SealedSessions
from controller.service.accounts.users import Gate
from controller.service.machines.gateways import GatewayAccess
from controller.web.app import Dashboard
from fairlead.wire.gateway import Browsers, ProxyLimits


def make_proxy(
    options: Options,
    assembly: Assembly,
    gate: Gate,
    dashboard: Dashboard,
    sealed: SealedSessions | None,
) -> Proxy:
    return Proxy(
        services=RegisteredServices(assembly.routes, assembly.pipeline),
        traffic=CountedTraffic(assembly.traffic),
        access=GateAccess(gate, sealed),
        connect=through_runners(assembly.nodes.connection),
        settings=options.proxy,
        prove=dashboard.opening.prove,
        sessions=sealed,
    )


def gateway_settings(
    options: Options, key: asyncssh.SSHKey, access: GatewayAccess
) -> GatewaySettings:
    """What holds for the proxy of this controller holds at gateways too."""
    shares = options.peers is not None
    limits, site = options.proxy.limits, options.proxy.site
    return GatewaySettings(
        make_link=lambda gateway: SocketGatewayLink(gateway, key),
        answers=access.answer,
        limits=ProxyLimits(
            hold=limits.hold_seconds, timeout=limits.answer_seconds, most_body=limits.most_body
        ),
        browsers=Browsers(dashboard=site.public_url, allows_plain_http=site.allows_plain_http),
        followers_key=ways_key(secret_of(key)).public if shares else None,
    )
