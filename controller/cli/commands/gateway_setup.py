"""`gateway setup`: makes the machine on which it runs a gateway."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from common.ssh_keys import public_key
from controller.cli import output
from controller.cli.commands.options import Flag
from controller.cli.errors import EXIT_USAGE, CliError
from gateway.haproxy import Places, configuration
from gateway.schemas import AGENT_SOCKET
from installer import gateway
from installer.main import install
from installer.system import InstallError, RealSystem

WOULD_CHANGE = 3
_HAS_IPV6 = Path("/proc/net/if_inet6")
Keys = Annotated[
    tuple[str, ...],
    Parameter(
        help="A controller's public key, as `fairlead node key` prints it; repeatable.",
        negative=(),
    ),
]


def setup(*, tunnel_key: Keys, check: Annotated[bool, Flag] = False) -> int:
    """Make this machine a gateway: users, sshd's rules, the firewall, units of HAProxy, Caddy and
    the agent.

    It is run as root, prints a line for each thing that it changes, and nothing when all is so
    already.

    Parameters
    ----------
    check
        Change nothing; 3 is the exit status if it would.
    """
    keys = [public_key(key) for key in tunnel_key]
    if None in keys or not keys:
        raise CliError(
            "--tunnel-key takes the line that `fairlead node key` prints: ssh-ed25519 AAAA…",
            EXIT_USAGE,
        )
    if os.geteuid() != 0:
        raise CliError("this changes users and services: run it as root (sudo)", EXIT_USAGE)
    system = RealSystem()
    changes: list[str] = []

    def tell(name: str, does: str) -> None:
        changes.append(name)
        output.emit(f"{name}: {does}")

    if found := gateway.problems(system):
        raise CliError("\n".join(found))
    program = Path(sys.prefix) / "bin" / "fairlead"
    home = Path(AGENT_SOCKET).parent
    data = Path(gateway.DATA)
    places = Places.of(Path(gateway.HAPROXY_FOLDER), Path(gateway.TRAFFIC_SOCKET), home, data)
    addresses = ("*", "[::]") if _HAS_IPV6.exists() else ("*",)
    haproxy = configuration(places, addresses=addresses)
    wanted = gateway.steps(str(program), [key for key in keys if key is not None], haproxy)
    try:
        install(system, wanted, tell, check=check)
    except (InstallError, OSError) as error:
        raise CliError(str(error)) from error
    if not check:
        output.note("now, where you use the command: fairlead gateway add NAME --host … --domain …")
    return WOULD_CHANGE if check and changes else 0
