"""Commands about the keys of services."""

from __future__ import annotations

import msgspec

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.documents import NewServiceKeyView, ServiceKeyView
from fairlead.rest import decode, service_key_path


class _Keys(msgspec.Struct):
    keys: list[ServiceKeyView]


def add(service: str, /, *, label: str = "", json: Json = False) -> int:
    """Make a key that opens one service alone and show it; it is shown only once.

    Parameters
    ----------
    service
        The name of the service.
    label
        A label that tells the key from others.
    """
    data = settings.client().post("/v1/service-keys", {"service": service, "label": label})
    if json:
        output.emit_json(data)
    else:
        made = decode(data, NewServiceKeyView)
        output.emit(made.secret)
        if not made.live:
            output.note(f"{made.user} has no service {service} now; the key opens the next one")
    return 0


def list_(service: str | None = None, /, *, json: Json = False) -> int:
    """List the keys of your services, without their secrets.

    Parameters
    ----------
    service
        Only the keys of this service.
    """
    data = settings.client().get("/v1/service-keys", service=service)
    if json:
        output.emit_json(data)
        return 0
    output.emit_table(
        ("ID", "SERVICE", "USER", "LABEL", "SINCE"),
        [
            (key.id, key.service, key.user, key.label or "-", key.created_at)
            for key in decode(data, _Keys).keys
        ],
    )
    return 0


def revoke(id: str, /, *, json: Json = False) -> int:
    """Revoke a key at once; its open requests end."""
    data = settings.client().delete(service_key_path(id))
    if json:
        output.emit_json(data)
    else:
        output.emit(f"key {id} revoked")
    return 0
