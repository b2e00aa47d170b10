"""`controllers`: the controllers that share a database."""

from __future__ import annotations

import msgspec

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.documents.installation import ControllerView
from fairlead.rest import decode


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
        ("URL", "STATUS", "VERSION", "SEEN"),
        [(one.url, one.status, one.version, one.last_seen_at) for one in found],
    )
    return 0
