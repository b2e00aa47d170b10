"""`gateway setup`: makes the machine on which it runs a gateway."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fairlead.cli import output
from fairlead.cli.commands.options import Flag
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.wire.gateway import AGENT_SOCKET
from fairlead.wire.public_keys import public_key
from gateway.haproxy import Paths, configuration
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


def setup(
    *,
    tunnel_key: Keys,
    takeover: Annotated[bool, Flag] = False,
    check: Annotated[bool, Flag] = False,
) -> int:
    """Make this machine a gateway: users, sshd's rules, the firewall, units of HAProxy, Caddy and
    the agent.

    It is run as root, prints a line for each thing that it changes, and nothing when all is so
    already.

    Parameters
    ----------
    takeover
        Take the gateway from a controller that --tunnel-key does not name.
    check
        Change nothing. The exit status is 3 if setup would change something.
    """
    found = [public_key(key) for key in tunnel_key]
    keys = [key for key in found if key is not None]
    if not keys or len(keys) < len(found):
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

    if problems := gateway.problems(system):
        raise CliError("\n".join(problems))
    program = Path(sys.prefix) / "bin" / "fairlead"
    home = Path(AGENT_SOCKET).parent
    data = Path(gateway.DATA)
    paths = Paths.of(Path(gateway.HAPROXY_FOLDER), Path(gateway.TRAFFIC_SOCKET), home, data)
    addresses = ("*", "[::]") if _HAS_IPV6.exists() else ("*",)
    haproxy = configuration(paths, addresses=addresses)
    wanted = gateway.steps(str(program), keys, haproxy)
    try:
        if not takeover:
            gateway.require_own(system, keys)
        install(system, wanted, tell, check=check)
    except (InstallError, OSError) as error:
        raise CliError(str(error)) from error
    if not check:
        output.note("now, where you use the command: fairlead gateway add NAME --host … --domain …")
    return WOULD_CHANGE if check and changes else 0
