"""Commands about services: their replicas, versions, and how a version comes back."""

from __future__ import annotations

import sys

import msgspec

from controller.api.documents import DeployView, ServiceGroupView, ServiceView
from controller.cli import output
from controller.cli.commands.options import Json
from fairlead import settings
from fairlead.rest import ControllerClient, decode, service_path


def show(service: str, /, *, json: Json = False) -> int:
    """Show a service: its replicas by version, its load, and how many replicas it wants and why.

    Parameters
    ----------
    service
        Id or name.
    """
    data = settings.client().get(service_path(service))
    if json:
        output.emit_json(data)
        return 0
    found = decode(data, ServiceView)
    access = "a token or a key of the service" if found.auth else "anybody"
    output.emit(f"{found.name} ({found.id}): {found.status}, deployment {found.deployment}")
    output.emit(f"path {found.path}, open to {access}")
    if found.model is not None:
        output.emit(f"model {found.model} under /models/v1")
    output.emit_table(
        ("GROUP", "WANTED", "RANGE", "REQ/S", "P50", "P95", "IN FLIGHT", "WHY"),
        [_group_row(group) for group in found.groups],
    )
    output.emit_table(
        ("REPLICA", "DEPLOYMENT", "STATUS", "NODE", "REQUESTS"),
        [
            (
                f"{one.group}/{one.replica}",
                str(one.deployment),
                one.status,
                one.node or "-",
                one.not_ready or f"since {one.registered_at}",
            )
            for one in found.replicas
        ],
    )
    return 0


def _group_row(group: ServiceGroupView) -> tuple[str, ...]:
    why = group.why
    if group.next != group.wanted or group.next_at is not None:
        why = group.next_why
    return (
        group.name,
        str(group.wanted),
        f"{group.least}..{group.most}",
        "-" if group.rps is None else f"{group.rps:.1f}",
        _seconds(group.latency_p50),
        _seconds(group.latency_p95),
        str(group.in_flight),
        why,
    )


def _seconds(time: float | None) -> str:
    return "-" if time is None else f"{1000 * time:.0f} ms"


def history(service: str, /, *, json: Json = False) -> int:
    """List the deployments of a service, the latest last.

    Parameters
    ----------
    service
        Id or name.
    """
    data = settings.client().get(service_path(service))
    found = decode(data, ServiceView)
    if json:
        output.emit_json(msgspec.json.encode({"deployments": found.deployments}))
        return 0
    output.emit_table(
        ("DEPLOYMENT", "STATE", "BY", "AT", "ABOUT"),
        [
            (
                str(one.number),
                one.state,
                one.by,
                one.at,
                one.message or ("-" if one.of is None else f"deployment {one.of} again"),
            )
            for one in found.deployments
        ],
    )
    return 0


def rollback(service: str, /, *, to: int | None = None, json: Json = False) -> int:
    """Bring an earlier deployment of a service back.

    Parameters
    ----------
    service
        Id or name.
    to
        The number of the deployment; default: the latest other one that was rolled out.
    """
    data = settings.client().post(service_path(service, "rollback"), {"to": to})
    if json:
        output.emit_json(data)
        return 0
    found = decode(data, ServiceView)
    last = found.deployments[-1]
    output.emit(f"{found.name}: deployment {last.number} brings deployment {last.of} back")
    return 0


def change_in_place(
    client: ControllerClient, service: str, wish: dict[str, object], *, yes: bool, json: bool
) -> int:
    """Show what a configuration changes of a live service, ask, and roll it out."""
    path = service_path(service, "deployments")
    body = {"configuration": wish["configuration"], "ssh_keys": wish["ssh_keys"]}
    asked = decode(client.post(path, {**body, "only_ask": True}), DeployView)
    if not asked.changes:
        output.note(f"{service} is as the file says; nothing was changed")
        return 0
    for change in asked.changes:
        output.note(f"  {change.field}: {_value(change.before)} -> {_value(change.after)}")
    if not yes and not _agreed(service):
        output.note("nothing was changed")
        return 1
    data = client.post(path, body)
    if json:
        output.emit_json(data)
        return 0
    made = decode(data, DeployView).service
    output.note(
        f"{service}: deployment {made.deployment} is rolled out (`fairlead service show {service}`)"
    )
    return 0


def _agreed(service: str) -> bool:
    """Ask on a terminal; a script that applies a file means it."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    output.write_all(output.STDERR_FD, f"Roll this out to {service}? [y/N] ".encode())
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _value(value: object) -> str:
    return "-" if value is None else msgspec.json.encode(value).decode()
