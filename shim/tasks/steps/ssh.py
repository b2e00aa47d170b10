"""SSH into the task: what its entrypoint needs, and where the node finds it.

The host key is made here and not in the container. So its public half is known, and can be pinned,
before anything of the job runs.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from common.files.durable import sync_folder
from fairlead.wire.shim import CLUSTER_SSH_PORT, NetworkMode, SshMode, SshRequest
from shim.engines.base import EngineUnavailable, NodeFault
from shim.errors import EngineError
from shim.files import safe_files
from shim.tasks.steps.base import StepContext

log = logging.getLogger(__name__)
PORT_NAME = "ssh"
CONTAINER_PORT = CLUSTER_SSH_PORT
"""In its own network a container may use any port; 22 is left to the image."""
_HOST_KEY = "ssh_host_ed25519_key"
_SETTINGS = "ssh.json"
_LOOPBACK = "127.0.0.1"
_EVERYWHERE = "0.0.0.0"
_HOST_PORTS = range(20000, 32768)
"""Ports below those that the kernel uses for outgoing connections."""
_TRIES = 100
_MAX_KEY = 1 << 12
_SECONDS = 20.0


class _NoKeygen(NodeFault):
    """Without ssh-keygen, a job whose user did not ask for SSH explicitly goes on without it."""


class Ssh:
    """Host key and settings in the task's folder; in host mode also the port, which is chosen on
    the node."""

    async def do(self, ctx: StepContext) -> None:
        asked = ctx.task.request.ssh
        if asked is None:
            return
        loop = asyncio.get_running_loop()
        try:
            public = await loop.run_in_executor(ctx.executor, _make_host_key, ctx)
        except _NoKeygen as error:
            if asked.mode is not SshMode.AUTO or asked.cluster_key is not None:
                raise
            log.warning("task %s: no SSH: %s", ctx.task.info.id, error)
            return
        ports = ctx.task.coming.ports
        if ctx.task.info.network_mode is NetworkMode.HOST and PORT_NAME not in ports:
            port = await loop.run_in_executor(ctx.executor, _host_port, asked)
            ports = {**ports, PORT_NAME: port}
        ctx.task.note(ssh_host_key=public, ports=ports)
        await loop.run_in_executor(ctx.executor, _write_settings, ctx, asked)

    async def undo(self, ctx: StepContext) -> None:
        """Do nothing: both files go with the task's folder."""


class Published:
    """Where the node reaches the SSH port of a container in its own network.

    The engine keeps a published port, so each life of the shim asks again; a missing answer never
    ends a job.
    """

    async def do(self, ctx: StepContext) -> None:
        info = ctx.task.info
        if not _serves_ssh(ctx) or info.container_id is None:
            return
        if ctx.engine.routes_to(info.run_id) and info.address is not None:
            ports = {**info.ports, PORT_NAME: CONTAINER_PORT}
            ctx.task.show(ports=ports, ssh_host=info.address)
            return
        try:
            port = await ctx.engine.published_port(info.container_id, CONTAINER_PORT)
        # Before its base EngineError: the port is asked for again once the engine answers.
        except EngineUnavailable:
            raise
        except EngineError as error:
            log.warning("task %s: its SSH port is unknown: %s", info.id, error)
            return
        if port is not None and info.ports.get(PORT_NAME) != port:
            ctx.task.show(ports={**info.ports, PORT_NAME: port})

    async def undo(self, ctx: StepContext) -> None:
        """Do nothing: the port goes with the container."""


def published_port(ctx: StepContext) -> int | None:
    """Return the container's port that the engine must publish on the node's loopback."""
    routed = ctx.engine.routes_to(ctx.task.info.run_id)
    return CONTAINER_PORT if _serves_ssh(ctx) and not routed else None


def _serves_ssh(ctx: StepContext) -> bool:
    """Return whether there is SSH into a container in its own network."""
    bridged = ctx.task.info.network_mode is NetworkMode.BRIDGE
    return bridged and ctx.task.info.ssh_host_key is not None


def _make_host_key(ctx: StepContext) -> str:
    """Return the public key line. The key is made once; a repeated step finds it. Blocking."""
    job_folder, known = ctx.settings.job_folder(ctx.task.info.id), ctx.task.coming.ssh_host_key
    if known is not None and safe_files.read_small(job_folder, _HOST_KEY, _MAX_KEY) is not None:
        return known
    private, public = _new_key(ctx.settings.task_folder(ctx.task.info.id))
    # The container's user may be any, but is in the group that owns the folder.
    safe_files.replace_file(job_folder, _HOST_KEY, private, 0o640, ctx.settings.gid)
    sync_folder(job_folder)
    return " ".join(public.split()[:2])


def _new_key(folder: Path) -> tuple[bytes, str]:
    """Make a key in a folder that no job reaches."""
    with TemporaryDirectory(dir=folder) as private:
        path = Path(private) / _HOST_KEY
        _generate(path)
        return path.read_bytes(), path.with_name(f"{path.name}.pub").read_text()


def _generate(path: Path) -> None:
    command = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path))
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise _NoKeygen(
            "this node has no ssh-keygen, so there is no SSH into its tasks: install "
            "openssh-client, or set `ssh: off`"
        ) from None
    except subprocess.TimeoutExpired:
        raise NodeFault(f"ssh-keygen did not end in {_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise NodeFault(f"ssh-keygen failed: {done.stderr.decode(errors='replace').strip()}")


def _write_settings(ctx: StepContext, asked: SshRequest) -> None:
    info = ctx.task.coming
    host_mode = info.network_mode is NetworkMode.HOST
    settings = {
        "address": _LOOPBACK if host_mode and asked.cluster_key is None else _EVERYWHERE,
        "port": info.ports[PORT_NAME] if host_mode else CONTAINER_PORT,
        "authorized_keys": (
            *asked.authorized_keys,
            *filter(None, (asked.cluster_key, asked.terminal_key)),
        ),
        "mode": asked.mode,
    }
    content = msgspec.json.encode(settings)
    folder = ctx.settings.job_folder(info.id)
    safe_files.replace_file(folder, _SETTINGS, content, 0o640, ctx.settings.gid)


def _host_port(asked: SshRequest) -> int:
    return _free_port() if asked.cluster_key is None else CONTAINER_PORT


def _free_port() -> int:
    for _ in range(_TRIES):
        port = random.choice(_HOST_PORTS)
        with socket.socket() as probe:
            # As the server's own socket does: connections in TIME_WAIT take no port (socket(7)).
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
            return port
    raise OSError(f"none of {_TRIES} ports tried on {_LOOPBACK} is free")
