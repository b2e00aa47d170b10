"""As much of an `ssh` command as git needs, for images that have none.

    ssh_client [-i KEY] [-o NAME=VALUE]... [-p PORT] [-x] [USER@]HOST COMMAND

Of the options it knows UserKnownHostsFile and StrictHostKeyChecking; the others say nothing that
matters to git. Exit status 255 when there is no connection, else the command's.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes.util
import sys
from collections.abc import Sequence
from typing import Any

import asyncssh


def _nothing_of_the_image(name: str) -> str | None:
    """Find no library: those of the image are not for this interpreter."""
    return None


ctypes.util.find_library = _nothing_of_the_image
_NO_CONNECTION = 255
"""What ssh(1) ends with after an error of its own."""
_SECONDS = 30.0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("ssh_client", add_help=False)
    add = parser.add_argument
    add("-i", dest="key")
    add("-F", dest="configuration")
    add("-p", dest="port", type=int, default=22)
    add("-x", action="store_true")
    add("-o", dest="options", action="append", default=[])
    add("host")
    add("command", nargs="+")
    return parser.parse_args(argv)


async def run(given: argparse.Namespace) -> int:
    """Run the command. Raises asyncssh.Error, OSError, TimeoutError."""
    user, _, host = given.host.rpartition("@")
    login: dict[str, Any] = {"username": user} if user else {}
    connecting = asyncssh.connect(
        host,
        given.port,
        known_hosts=_known_hosts(given.options),
        client_keys=[given.key] if given.key else [],
        agent_path=None,
        config=[],
        connect_timeout=_SECONDS,
        keepalive_interval=15,
        **login,
    )
    async with connecting as connection:
        command = " ".join(given.command)
        protocol = _protocol(given.options)
        async with connection.create_process(
            command, env=protocol, stdin=sys.stdin.buffer, stdout=sys.stdout.buffer,
            stderr=sys.stderr.buffer, encoding=None,
        ) as process:  # fmt: skip
            done = await process.wait()
    return _NO_CONNECTION if done.exit_status is None else done.exit_status


def _known_hosts(options: Sequence[str]) -> Any:
    """Return the known hosts; None (any key is accepted) unless checking was requested."""
    given = {name.lower(): value for name, _, value in (o.partition("=") for o in options)}
    if given.get("stricthostkeychecking") != "yes":
        return None
    return asyncssh.read_known_hosts(given["userknownhostsfile"])


def _protocol(options: Sequence[str]) -> dict[str, str]:
    for option in options:
        _, found, version = option.partition("GIT_PROTOCOL=")
        if found and version:
            return {"GIT_PROTOCOL": version}
    return {}


def main() -> int:
    try:
        return asyncio.run(run(parse()))
    except (asyncssh.Error, OSError, TimeoutError) as error:
        sys.stderr.write(f"ssh: {' '.join(str(error).split()) or type(error).__name__}\n")
        return _NO_CONNECTION


if __name__ == "__main__":
    sys.exit(main())
