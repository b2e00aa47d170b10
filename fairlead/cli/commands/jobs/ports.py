"""`port-forward`: reach a job's ports on this machine."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.forward import Forward, forward
from fairlead.model.statuses import FINAL_RUN_STATUSES


def port_forward(
    run: str,
    /,
    *ports: Annotated[str, Parameter(name="PORT[:LOCAL]")],
    job: str | None = None,
    bind: str = "127.0.0.1",
) -> int:
    """Forward local ports to ports of a job, until you interrupt it.

    Parameters
    ----------
    run
        Id or name.
    ports
        A port of the job. After a colon comes the local port (default: the same number; 0: any free
        port).
    job
        Id, GROUP/COOKIE or index; default: the first.
    bind
        The local address on which to listen.
    """
    if not ports:
        raise CliError("which port? Give PORT or PORT:LOCAL", EXIT_USAGE)
    forwards = [parse_forward(text) for text in ports]
    client = settings.client()
    found = client.run(run)
    if found.status in FINAL_RUN_STATUSES:
        raise CliError(f"run {found.name} has ended ({found.status}): nothing listens there")
    asyncio.run(forward(client, found.name, job, forwards, bind, output.note))
    return 0


def parse_forward(text: str) -> Forward:
    """Return the ports of `PORT` or `PORT:LOCAL`. Raises CliError."""
    port, colon, local = text.partition(":")
    numbers = [port, local if colon else port]
    if not all(n.isascii() and n.isdecimal() and len(n) < 6 and int(n) < 65536 for n in numbers):
        raise CliError(f"{text!r} is not PORT or PORT:LOCAL, such as 8080 or 8080:9000", EXIT_USAGE)
    if int(port) == 0:
        raise CliError("port 0 is not a port of a job", EXIT_USAGE)
    return Forward(int(numbers[0]), int(numbers[1]))
