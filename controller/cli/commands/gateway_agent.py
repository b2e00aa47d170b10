"""The gateway's agent, as a command on the gateway's machine."""

from __future__ import annotations

import grp
import logging
from pathlib import Path
from typing import Annotated

import uvloop
from cyclopts import Parameter

from controller.cli import output
from controller.cli.errors import EXIT_USAGE, CliError
from gateway import agent
from gateway.caddy import Ports
from gateway.schemas import AGENT_SOCKET

_RUN = Path(AGENT_SOCKET).parent
Group = Annotated[str | None, Parameter(help="The group that may open this socket.")]


def run(
    *,
    data: Path = Path("/var/lib/fairlead-gateway"),
    socket: Path = Path(AGENT_SOCKET),
    socket_group: Group = None,
    traffic: Path = _RUN / "traffic.sock",
    traffic_group: Group = None,
    caddy_admin: Path = _RUN / "caddy-admin.sock",
    http_port: int = 80,
    https_port: int = 443,
    ask_port: int = 2020,
    haproxy: Path | None = None,
) -> int:
    """Run the agent of a gateway, beside Caddy; `fairlead gateway setup` makes its unit.

    Parameters
    ----------
    data
        Its folder: its key, and what it serves.
    socket
        Where the controller reaches it, through SSH.
    traffic
        Where Caddy passes requests on to it.
    caddy_admin
        The socket of Caddy's own API.
    http_port
        Where Caddy listens for HTTP.
    https_port
        Where Caddy listens for HTTPS.
    ask_port
        Where Caddy asks, on its loopback, whether a host name is known.
    haproxy
        The folder of the HAProxy that stands between Caddy and the agent.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("asyncssh").setLevel(logging.WARNING)  # else a line for each request
    options = agent.Options(
        data=data,
        socket=socket,
        traffic=traffic,
        caddy_admin=caddy_admin,
        group=_gid(socket_group, "--socket-group"),
        caddy_group=_gid(traffic_group, "--traffic-group"),
        ports=Ports(http=http_port, https=https_port, ask=ask_port),
        haproxy=haproxy,
    )
    try:
        uvloop.run(agent.serve(options, lambda: output.note(f"listening at {socket}")))
    except agent.AgentCannotStart as error:
        raise CliError(str(error)) from error
    return 0


def _gid(group: str | None, option: str) -> int | None:
    try:
        return None if group is None else grp.getgrnam(group).gr_gid
    except KeyError:
        raise CliError(f"{option} {group}: there is no such group", EXIT_USAGE) from None
