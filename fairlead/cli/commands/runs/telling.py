"""What `stop` and the other orders to a run print: its name and its status."""

from __future__ import annotations

import msgspec

from fairlead.cli import output
from fairlead.rest import decode


class _Ordered(msgspec.Struct, frozen=True):
    """What is told of the run; all types of its document take longer to load."""

    name: str
    status: str
    suspended: bool


def tell(data: bytes, json: bool) -> int:
    """Print the controller's answer to an order. Return the exit status."""
    if json:
        output.emit_json(data)
        return 0
    run = decode(data, _Ordered)
    suspended = " (suspended)" if run.suspended else ""
    output.emit(f"{run.name}: {run.status}{suspended}")
    return 0
