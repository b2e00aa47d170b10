"""The gateway's agent, as a command on the gateway's machine."""

from __future__ import annotations

import grp
import logging
from pathlib import Path
from typing import Annotated

import uvloop
from cyclopts import Parameter

from fairlead.cli import output
from fairlead.cli.commands.options import Flag
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.wire.gateway import AGENT_SOCKET
from gateway import agent, direct
from gateway.haproxy import Ports
from installer.gateway import CADDY_ADMIN, HAPROXY_FOLDER, TRAFFIC_SOCKET

_RUN = Path(AGENT_SOCKET).parent
Group = Annotated[str | None, Parameter(help="The group that may open this socket.")]


def run(
    *,
    data: Path = Path("/var/lib/fairlead-gateway"),
    socket: Path = Path(AGENT_SOCKET),
    socket_group: Group = None,
    traffic: Path = Path(TRAFFIC_SOCKET),
    caddy_admin: Path = Path(CADDY_ADMIN),
    haproxy: Path = Path(HAPROXY_FOLDER),
    https_port: int = 443,
    challenge_port: int = 2080,
    prepare: Annotated[bool, Flag] = False,
) -> int:
    """Run the agent of a gateway, beside HAProxy and Caddy; `fairlead gateway setup` makes its
    unit.

    Parameters
    ----------
    data
        The agent's folder, with its key and what it serves.
    socket
        The socket at which the controller reaches the agent, through SSH.
    traffic
        The socket at which HAProxy passes requests on to the agent.
    caddy_admin
        The socket of Caddy's own API.
    haproxy
        The folder of HAProxy's sockets.
    https_port
        The port at which HAProxy listens for HTTPS.
    challenge_port
        The port of the loopback at which Caddy answers the challenges of an authority.
    prepare
        Make the files that HAProxy needs at its start, and exit.
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
        haproxy=haproxy,
        ports=Ports(https=https_port, challenges=challenge_port),
    )
    if prepare:
        try:
            direct.prepare(options.paths)
        except OSError as error:
            raise CliError(f"{data}: {error.strerror}") from error
        return 0
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
