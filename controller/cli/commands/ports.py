"""`port-forward`: reach a job's ports on this machine."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from controller.cli import output
from controller.cli.errors import EXIT_USAGE, CliError
from controller.cli.forward import forward, parse_forward
from controller.lifecycle.statuses import FINAL_RUN_STATUSES
from fairlead import settings


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
        A port of the job, and after a colon the local port (default: the same; 0: any free one).
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
