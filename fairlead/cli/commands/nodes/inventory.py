"""Commands about nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Attributes, Flag, Json, attributes_of
from fairlead.cli.commands.pages import whole_list
from fairlead.cli.durations import seconds_of
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.documents.nodes import NodeAllowsView, NodeView, QuarantinedTaskView
from fairlead.rest import decode, node_path
from fairlead.wire.node import Finding, FindingLevel
from fairlead.wire.sizes import human_size


class _Nodes(msgspec.Struct):
    nodes: list[NodeView]


class _Tasks(msgspec.Struct):
    tasks: list[QuarantinedTaskView]


class _Findings(msgspec.Struct):
    findings: list[Finding]


class _Key(msgspec.Struct):
    public_key: str


HostKey = Annotated[
    str | None,
    Parameter(help="The node's public host key, as in /etc/ssh/ssh_host_ed25519_key.pub."),
]
AcceptedKey = Annotated[
    str | None, Parameter(help="The fingerprint (SHA256:…) of one of the node's present host keys.")
]
JumpUser = Annotated[
    str, Parameter(help="The user through which people reach their jobs (`fairlead ssh`).")
]
TunnelUser = Annotated[str, Parameter(help="The tunnel user on the node.")]


def add(
    name: str,
    /,
    *,
    local: str | None = None,
    host: str | None = None,
    port: int = 22,
    user: TunnelUser = "fairlead",
    socket: str = "/run/fairlead/shim.sock",
    jump_user: JumpUser = "fairlead-jump",
    host_key: HostKey = None,
    accept_host_key: AcceptedKey = None,
    fleet: str = "default",
    attribute: Attributes = None,
    json: Json = False,
) -> int:
    """Add a node: a shim on the controller's machine, or a machine reached through SSH.

    Parameters
    ----------
    local
        The shim's socket on the controller's machine.
    host
        The node's address.
    port
        The port of its sshd.
    socket
        The shim's socket on the node.
    fleet
        The node's fleet.
    """
    _require_one_address(local, host)
    request = {
        "name": name,
        "local_socket": local,
        "host": host,
        "port": port,
        "user": user,
        "socket": socket,
        "jump_user": jump_user,
        "host_key": host_key,
        "accept_host_key": accept_host_key,
        "fleet": fleet,
        "attributes": attributes_of(attribute),
    }
    data = settings.client().post("/v1/nodes", request)
    return show_done(data, json, "added")


def _require_one_address(local: str | None, host: str | None) -> None:
    if (local is None) == (host is None):
        raise CliError(
            "give either --local SOCKET (a shim on the controller's machine) or --host HOST",
            EXIT_USAGE,
        )


def list_(*, json: Json = False) -> int:
    """List nodes."""
    data = whole_list(settings.client(), "/v1/nodes", "nodes")
    if json:
        output.emit_json(data)
        return 0
    output.emit_table(
        ("NAME", "FLEET", "STATUS", "ADDRESS", "ENGINE", "CPU", "MEMORY", "GPU", "RUNS", "ABOUT"),
        [_cells(node) for node in decode(data, _Nodes).nodes],
    )
    return 0


def _to_be_empty(deadline: str) -> str:
    """Return the state of a drain deadline; jobs that are still there after it are ending."""
    is_over = datetime.fromisoformat(deadline) <= output.utc_now()
    return f"passed its drain deadline at {deadline}" if is_over else f"until {deadline}"


def _until(time: str) -> str:
    is_over = datetime.fromisoformat(time) <= output.utc_now()
    return f"its user-data expired at {time}" if is_over else f"until {time}"


def _cells(node: NodeView) -> tuple[str, ...]:
    in_use = sum(gpu.in_use for gpu in node.gpus)
    memory = f"{human_size(node.memory_allocated)} / {human_size(node.memory)}"
    about = [
        node.message or "",
        _until(node.register_until) if node.register_until else "",
        _reasoned("draining", node.drain_reason) if node.draining else "",
        _to_be_empty(node.drain_deadline) if node.drain_deadline else "",
        _reasoned("cordoned", node.cordon_reason) if node.cordoned else "",
        f"takes no work: {node.unfit}" if node.unfit else "",
        f"unknown tasks: {node.quarantined}" if node.quarantined else "",
    ]
    if len(node.controllers) > 1:
        about.append(
            f"{len(node.controllers)} controllers may log in ({', '.join(node.controllers)}), and "
            "each places jobs as if it were alone"
        )
    about += [f"GPU {gpu.uuid}: {gpu.message}" for gpu in node.gpus if gpu.message]
    if not node.host_network:
        about.append("its network is given to no job (--host-network never)")
    if not node.isolation:
        about.append("no isolation: for development only")
    return (
        node.name,
        node.fleet,
        node.status,
        node.address,
        node.engine or "-",
        f"{node.cpu_allocated:g} / {node.cpu:g}",
        memory,
        f"{in_use} / {len(node.gpus)}",
        str(len(node.runs)),
        "; ".join(part for part in about if part),
    )


def _networks(node: NodeView) -> str:
    """Say how many networks of runs there can be, and who makes them."""
    makers = {"docker": "made by its engine", "agent": "made by its shim"}
    made = makers.get(node.network_kind or "", "")
    why = f" ({node.network_why})" if node.network_why else ""
    number = "" if node.networks is None else f"{node.networks} at once"
    return ", ".join(part for part in (number, f"{made}{why}" if made else "") if part)


def _reasoned(word: str, reason: str | None) -> str:
    return f"{word}: {reason}" if reason else word


def show(name: str, /, *, json: Json = False) -> int:
    """Show a node in full."""
    data = settings.client().get(node_path(name))
    if json:
        output.emit_json(data)
        return 0
    node = decode(data, NodeView)
    rows = {
        "name": node.name,
        "id": node.id,
        "fleet": node.fleet,
        "attributes": ", ".join(f"{key}={value}" for key, value in node.attributes.items()),
        "status": node.status,
        "address": node.address,
        "host key": node.host_key_fingerprint,
        "engine": node.engine,
        "its engine lacks": ", ".join(node.engine_lacks),
        "its operator allows": "" if node.allows is None else allowed(node.allows),
        "networks of runs": _networks(node),
        "CPU": f"{node.cpu_allocated:g} of {node.cpu:g} in use",
        "memory": f"{human_size(node.memory_allocated)} of {human_size(node.memory)} in use",
        "disk": f"{human_size(node.disk_allocated)} of {human_size(node.disk)} in use",
        "GPUs": ", ".join(f"{gpu.uuid} {gpu.name}" for gpu in node.gpus),
        "runs": ", ".join(node.runs),
        "ended runs that may have left something there": ", ".join(node.ended_runs),
        "added at": node.created_at,
        "about": _cells(node)[-1],
    }
    output.emit_table(("", ""), [(key, value) for key, value in rows.items() if value])
    if node.images:
        output.emit("\nimages that its fleet pulls ahead:")
        output.emit_table(
            ("IMAGE", "STATE", "SINCE", "WHY"),
            [(one.image, one.state, one.since or "-", one.message or "") for one in node.images],
        )
    if node.events:
        output.emit("\nlatest events:")
        output.emit_table(
            ("AT", "WHAT", "WHY", "BY"),
            [(one.at, one.what, one.why or "", one.by or "") for one in node.events],
        )
    return 0


def set_(
    name: str,
    /,
    *,
    attribute: Attributes = None,
    fleet: str | None = None,
    host_key: HostKey = None,
    accept_host_key: AcceptedKey = None,
    json: Json = False,
) -> int:
    """Change a node's attributes (NAME= removes one), its fleet or its pinned host key.

    Parameters
    ----------
    fleet
        The node's fleet.
    """
    if not attribute and fleet is None and host_key is None and accept_host_key is None:
        raise CliError(
            "say what to change: --attribute NAME=VALUE, --fleet FLEET, --host-key KEY or "
            "--accept-host-key SHA256:…",
            EXIT_USAGE,
        )
    body = {
        "attributes": attributes_of(attribute, takes_away=True),
        "fleet": fleet,
        "host_key": host_key,
        "accept_host_key": accept_host_key,
    }
    client, path = settings.client(), node_path(name)
    was = decode(client.get(path), NodeView).host_key_fingerprint
    changed = client.patch(path, body)
    now = decode(changed, NodeView).host_key_fingerprint
    done = "changed" if was == now else f"changed: its host key was {was}, now {now} is pinned"
    return show_done(changed, json, done)


def drain(
    name: str,
    /,
    *,
    reason: str | None = None,
    deadline: str | None = None,
    json: Json = False,
) -> int:
    """Empty a node: no new placements; running jobs stay, until the deadline if there is one.

    Parameters
    ----------
    reason
        The reason, shown in `node list` and to the owners of jobs that are ended.
    deadline
        A duration such as 30m. After it, jobs that still run there are ended and move elsewhere.
    """
    body = {"reason": reason, "deadline": seconds_of(deadline, "--deadline")}
    return show_done(settings.client().post(node_path(name, "drain"), body), json, "is draining")


def cordon(name: str, /, *, reason: str | None = None, json: Json = False) -> int:
    """Stop new placements on a node; running jobs stay.

    Parameters
    ----------
    reason
        The reason, shown in `node list`.
    """
    data = settings.client().post(node_path(name, "cordon"), {"reason": reason})
    return show_done(data, json, "is cordoned")


def uncordon(name: str, /, *, json: Json = False) -> int:
    """End a cordon: allow new placements on the node."""
    data = settings.client().post(node_path(name, "uncordon"), {})
    return _show_usable(data, json)


def tasks(name: str, /, *, json: Json = False) -> int:
    """List a node's tasks that the controller does not know; they keep running."""
    data = settings.client().get(node_path(name, "tasks"))
    if json:
        output.emit_json(data)
        return 0
    output.emit_table(
        ("TASK", "RUN", "STATUS", "CPU", "MEMORY", "GPU", "SINCE", "ABOUT"),
        [
            (
                task.id,
                task.run_name,
                task.status,
                f"{task.cpu:g}",
                human_size(task.memory),
                str(len(task.gpus)),
                task.submitted_at,
                "is being stopped" if task.stopping else "",
            )
            for task in decode(data, _Tasks).tasks
        ],
    )
    return 0


def stop_task(name: str, task: str, /, *, json: Json = False) -> int:
    """Stop and remove a task that the controller does not know."""
    path = node_path(name, f"tasks/{quote(task, safe='')}")
    return show_done(settings.client().delete(path), json, f"will end task {task}")


def doctor(name: str, /, *, json: Json = False) -> int:
    """Let a node look at all that a job needs there: a sentence and a fix for each."""
    data = settings.client().get(node_path(name, "doctor"))
    findings = decode(data, _Findings).findings
    if json:
        output.emit_json(data)
    else:
        for each in findings:
            output.emit(f"{each.level:8} {each.check:9} {each.message}")
            if each.fix:
                output.emit(f"{'':19}fix: {each.fix}")
    return int(any(each.level is FindingLevel.ERROR for each in findings))


def clear_gpu(name: str, gpu: str, /, *, json: Json = False) -> int:
    """Offer a GPU again after a fault, or forget one that you have removed.

    Parameters
    ----------
    gpu
        Its UUID; `node list` shows GPUs that are not offered, and why.
    """
    data = settings.client().post(node_path(name, f"gpus/{quote(gpu, safe='')}/clear"), {})
    is_there = gpu in {one.uuid for one in decode(data, NodeView).gpus}
    done = f"offers GPU {gpu} again" if is_there else f"no longer expects GPU {gpu}"
    return show_done(data, json, done)


def resume(name: str, /, *, json: Json = False) -> int:
    """End a drain: allow new placements on the node."""
    return _show_usable(settings.client().post(node_path(name, "resume"), {}), json)


def remove(name: str, /, *, lost: Annotated[bool, Flag] = False, json: Json = False) -> int:
    """Remove a node that has no jobs.

    Parameters
    ----------
    lost
        The machine is gone for good: its jobs move elsewhere and their allocations are free.
    """
    return show_done(settings.client().delete(node_path(name), lost=lost), json, "removed")


def key(*, json: Json = False) -> int:
    """Show the controller's public SSH key, for the nodes' authorized_keys."""
    data = settings.client().get("/v1/node-key")
    if json:
        output.emit_json(data)
    else:
        output.emit(decode(data, _Key).public_key)
    return 0


def _show_usable(data: bytes, json: bool) -> int:
    """Show the node after a drain or a cordon ended. They are independent: the other one may still
    hold."""
    node = decode(data, NodeView)
    done = "is in use again"
    if node.draining:
        done = f"is still draining: `fairlead node resume {node.name}` ends that"
    elif node.cordoned:
        done = f"is still cordoned: `fairlead node uncordon {node.name}` ends that"
    return show_done(data, json, done)


def allowed(allows: NodeAllowsView) -> str:
    """Return what the operator allows jobs to have, in words."""
    found = [f"volumes below {prefix}" for prefix in allows.volume_prefixes]
    found += ["privileged containers"] if allows.privileged else []
    found += ["raw sockets in its network"] if allows.raw_sockets else []
    return ", ".join(found) or "no paths as volumes, no privileged containers"


def show_done(data: bytes, json: bool, done: str) -> int:
    if json:
        output.emit_json(data)
        return 0
    node = decode(data, NodeView)
    output.emit(f"node {node.name} {done}")
    return 0
