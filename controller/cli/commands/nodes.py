"""Commands about nodes."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from controller.api.documents import NodeView
from controller.cli import output, settings
from controller.cli.client import decode, node_path
from controller.cli.commands.options import Json
from controller.cli.errors import EXIT_USAGE, CliError


class _Nodes(msgspec.Struct):
    nodes: list[NodeView]


class _Key(msgspec.Struct):
    public_key: str


def add(
    name: str,
    /,
    *,
    local: str | None = None,
    host: str | None = None,
    port: int = 22,
    user: str = "fairlead",
    socket: str = "/run/fairlead/shim.sock",
    jump_user: str = "fairlead-jump",
    host_key: str | None = None,
    accept_host_key: str | None = None,
    json: Json = False,
) -> int:
    """Add a node: a shim on the controller's machine, or one that is reached through SSH.

    Parameters
    ----------
    local
        The shim's socket on the controller's machine.
    host
        The node's address.
    port
        Of its sshd.
    user
        Its tunnel user.
    socket
        The shim's socket on the node.
    jump_user
        As whom users come through it to their jobs (`fairlead ssh`).
    host_key
        The node's public host key, as in /etc/ssh/ssh_host_ed25519_key.pub.
    accept_host_key
        The fingerprint (SHA256:…) of the key that the node presents now.
    """
    if (local is None) == (host is None):
        raise CliError(
            "give either --local SOCKET (a shim on the controller's machine) or --host HOST",
            EXIT_USAGE,
        )
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
    }
    data = settings.client().post("/v1/nodes", request)
    return _show(data, json, "added")


def list_(*, json: Json = False) -> int:
    """List nodes."""
    data = settings.client().get("/v1/nodes")
    if json:
        output.emit_json(data)
        return 0
    output.emit_table(
        ("NAME", "STATUS", "ADDRESS", "ENGINE", "CPU", "MEMORY", "GPU", "RUNS", "ABOUT"),
        [_cells(node) for node in decode(data, _Nodes).nodes],
    )
    return 0


def _cells(node: NodeView) -> tuple[str, ...]:
    in_use = sum(gpu.in_use for gpu in node.gpus)
    memory = f"{output.size(node.memory_allocated)} / {output.size(node.memory)}"
    about = [node.message or ""]
    if node.draining:
        about.append(f"draining: {node.drain_reason}" if node.drain_reason else "draining")
    about += [f"GPU {gpu.uuid}: {gpu.message}" for gpu in node.gpus if gpu.message]
    if not node.isolation:
        about.append("no isolation: for development only")
    return (
        node.name,
        node.status,
        node.address,
        node.engine or "-",
        f"{node.cpu_allocated:g} / {node.cpu:g}",
        memory,
        f"{in_use} / {len(node.gpus)}",
        str(len(node.runs)),
        "; ".join(part for part in about if part),
    )


def drain(name: str, /, *, reason: str | None = None, json: Json = False) -> int:
    """Place nothing new on a node; what runs there goes on.

    Parameters
    ----------
    reason
        Shown in `node list`.
    """
    data = settings.client().post(node_path(name, "drain"), {"reason": reason})
    return _show(data, json, "is draining")


def clear_gpu(name: str, gpu: str, /, *, json: Json = False) -> int:
    """Offer a GPU again that was found broken, once you have repaired it or know better.

    Parameters
    ----------
    gpu
        Its UUID; `node list` names GPUs that are not offered, and why.
    """
    data = settings.client().post(node_path(name, f"gpus/{quote(gpu, safe='')}/clear"), {})
    return _show(data, json, f"offers GPU {gpu} again")


def resume(name: str, /, *, json: Json = False) -> int:
    """Place on a drained node again."""
    return _show(settings.client().post(node_path(name, "resume"), {}), json, "is in use again")


def remove(name: str, /, *, json: Json = False) -> int:
    """Forget a node that has no jobs."""
    return _show(settings.client().delete(node_path(name)), json, "removed")


def key(*, json: Json = False) -> int:
    """Show the controller's public SSH key, to be put into the nodes' authorized_keys."""
    data = settings.client().get("/v1/node-key")
    if json:
        output.emit_json(data)
    else:
        output.emit(decode(data, _Key).public_key)
    return 0


def _show(data: bytes, json: bool, done: str) -> int:
    if json:
        output.emit_json(data)
        return 0
    node = decode(data, NodeView)
    output.emit(f"node {node.name} {done}")
    return 0
