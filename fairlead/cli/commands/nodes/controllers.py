"""`controllers`: the controllers that share a database."""

from __future__ import annotations

import msgspec

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.documents.installation import ControllerView
from fairlead.rest import decode
from fairlead.wire.sizes import human_size


class _Controllers(msgspec.Struct):
    controllers: list[ControllerView]


def controllers(*, json: Json = False) -> int:
    """List the controllers that share the database, and say which of them leads."""
    data = settings.client().get("/v1/controllers")
    if json:
        output.emit_json(data)
        return 0
    found = decode(data, _Controllers).controllers
    if not found:
        output.emit("this controller is the only one: it was started without --url")
        return 0
    output.emit_table(
        ("URL", "STATUS", "DISK", "VERSION", "SEEN"),
        [(one.url, one.status, _disk(one), one.version, one.last_seen_at) for one in found],
    )
    return 0


def _disk(one: ControllerView) -> str:
    if one.disk_free_bytes is None:
        return "-"
    free = f"{human_size(one.disk_free_bytes)} free"
    return f"disk full: {free}" if one.is_disk_full else free
