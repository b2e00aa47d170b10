"""Commands about services: their replicas, versions, and how a version comes back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.documents.services import (
    DeploymentView,
    DeployView,
    ReplicaView,
    ServiceGroupView,
    ServiceView,
)
from fairlead.errors import ApiError
from fairlead.follow import until_answered
from fairlead.model.service import DeploymentState
from fairlead.model.statuses import FINAL_RUN_STATUSES
from fairlead.patience import Outages
from fairlead.rest import ControllerClient, decode, service_path
from fairlead.submission import SENT_AGAIN
from fairlead.wire.errors import NOT_UPLOADED

_PAUSE_SECONDS = 0.5


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
    access = "a token or a key of the service" if found.auth else "all"
    output.emit(f"{found.name} ({found.id}): {found.status}, deployment {found.deployment}")
    output.emit(f"path {found.path}, open to {access}")
    if found.url is not None:
        at = "" if found.gateway is None else f" at the gateway {found.gateway}"
        output.emit(f"url {found.url}{at}")
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
                ", ".join(one.nodes) or "-",
                requests_of(one),
            )
            for one in found.replicas
        ],
    )
    return 0


def requests_of(replica: ReplicaView) -> str:
    """Return whether the replica gets requests, and why it does not."""
    if replica.not_ready is not None:
        return replica.not_ready
    if replica.ejected_until is not None:
        return f"ejected until {replica.ejected_until}: it answered with errors alone"
    return f"since {replica.registered_at}" if replica.registered_at else "it ends"


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
                _about(one, has_ended=found.status in FINAL_RUN_STATUSES),
            )
            for one in found.deployments
        ],
    )
    return 0


def _about(deployment: DeploymentView, *, has_ended: bool) -> str:
    if has_ended and deployment.state is DeploymentState.ROLLING:
        return "the service ended before it was rolled out"
    if deployment.of is None:
        return deployment.message or "-"
    again = f"deployment {deployment.of} again"
    if deployment.message is None:
        return again
    return f"{again}, because {deployment.number - 1} failed: {deployment.message}"


def rollback(service: str, /, *, to: int | None = None, json: Json = False) -> int:
    """Bring an earlier deployment of a service back.

    Parameters
    ----------
    service
        Id or name.
    to
        The number of the deployment; default: the latest other deployment that was rolled out.
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
    client: ControllerClient,
    service: str,
    wish: dict[str, Any],
    *,
    yes: bool,
    detach: bool,
    json: bool,
    send: Callable[[], dict[str, Any]] | None = None,
) -> int:
    """Show what a configuration changes of a live service, ask, and roll it out.

    If the controller has lost the code, `send` sends it again and returns the wish, and the change
    is asked for once more. Unless `detach`, follow the rollout; the status is 1 when its version
    was not rolled out.
    """
    path = service_path(service, "deployments")
    asked = _asked(client, path, wish)
    agreed = _agreed(service, asked, yes=yes)
    try:
        made = _rolled_out(client, path, wish) if agreed else None
    except ApiError as error:
        # The controller looks for the code before it changes anything.
        if error.code != NOT_UPLOADED or send is None:
            raise
        output.note(SENT_AGAIN)
        again = send()
        # Meanwhile somebody may have changed the service, or the code.
        before, asked = (asked.changes, wish["configuration"]), _asked(client, path, again)
        is_same = before == (asked.changes, again["configuration"])
        agreed = is_same or _agreed(service, asked, yes=yes)
        made = _rolled_out(client, path, again) if agreed else None
    if made is None:
        if json and not asked.changes:
            output.emit_json(msgspec.json.encode(asked))
        return 1 if asked.changes else 0
    number = made.service.deployment
    output.note(f"{service}: deployment {number} is being rolled out")
    status = 0
    if detach:
        output.note(f"`fairlead service show {service}` tells how far it is")
    else:
        latest, status = _follow_rollout(client, made.service.id, number)
        made = replace(made, service=latest)
    if json:
        output.emit_json(msgspec.json.encode(made))
    return status


def _asked(client: ControllerClient, path: str, wish: dict[str, Any]) -> DeployView:
    """Return what would change."""
    return decode(client.post(path, {**_body(wish), "only_ask": True}), DeployView)


def _rolled_out(client: ControllerClient, path: str, wish: dict[str, Any]) -> DeployView:
    return decode(client.post(path, _body(wish)), DeployView)


def _body(wish: dict[str, Any]) -> dict[str, Any]:
    return {"configuration": wish["configuration"], "ssh_keys": wish["ssh_keys"]}


def _agreed(service: str, asked: DeployView, *, yes: bool) -> bool:
    """Show what would change; return whether there is something, and it is wanted."""
    if not asked.changes:
        output.note(f"{service} is as the file says; nothing was changed")
        return False
    for change in asked.changes:
        output.note(f"  {change.field}: {_value(change.before)} -> {_value(change.after)}")
    if yes or _is_wanted(service):
        return True
    output.note("nothing was changed")
    return False


def _follow_rollout(
    client: ControllerClient, service_id: str, number: int
) -> tuple[ServiceView, int]:
    """Wait until this deployment is rolled out or is not going to be; say so."""
    outages, shown = Outages(output.note), ""
    while True:
        found = until_answered(
            outages, lambda: decode(client.get(service_path(service_id)), ServiceView)
        )
        deployment = next((one for one in found.deployments if one.number == number), None)
        if deployment is None or found.status in FINAL_RUN_STATUSES:
            output.note(f"{found.name}: {found.status}; deployment {number} was not rolled out")
            return found, 1
        if deployment.state == DeploymentState.DONE:
            output.note(f"{found.name}: deployment {number} is rolled out")
            return found, 0
        if deployment.state != DeploymentState.ROLLING:
            why = deployment.message or "another deployment took its place"
            words = deployment.state.replace("_", " ")
            output.note(f"{found.name}: deployment {number} was {words}: {why}")
            return found, 1
        progress = _progress(found, number)
        if progress != shown:
            output.note(progress)
            shown = progress
        time.sleep(_PAUSE_SECONDS)


def _progress(found: ServiceView, number: int) -> str:
    new = [one for one in found.replicas if one.deployment == number]
    ready = sum(one.registered_at is not None for one in new)
    wanted = sum(group.wanted for group in found.groups)
    return f"{found.name}: {ready} of {wanted} replicas of deployment {number} are ready"


def _is_wanted(service: str) -> bool:
    """Ask on a terminal; a script that applies a file means it."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    output.write_all(output.STDERR_FD, f"Roll this out to {service}? [y/N] ".encode())
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _value(value: object) -> str:
    return "-" if value is None else msgspec.json.encode(value).decode()
