"""Turns a container's spec into the engine's request. Pure.

So cases that this machine's engine cannot perform (raised limits, privileges) are tested too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

import msgspec
from docker.types import HostConfig, LogConfig, Mount
from docker.types import Ulimit as DockerUlimit

from common.files.task_folder import RUNNER_SOCKET_NAME
from fairlead.wire.shim import NetworkMode, VolumeKind
from shim.engines.base import ContainerSpec, MountSpec, NodeFault
from shim.settings import AUTO_RUNTIME

_RUNTIME = "/opt/fairlead/runtime"
ENTRYPOINT = f"{_RUNTIME}/bin/fairlead-entrypoint"
_TASK_FOLDER = "/opt/fairlead/task"
_RUN_FOLDER = "/opt/fairlead/run"
_MAX_PROCESSES = 32768
_TMPFS_MODE = 0o1777
# Docker refuses fewer CPUs ("Range of CPUs is from 0.01").
_MIN_CPU_PERIODS = 0.01


class NodeValues(msgspec.Struct, frozen=True, kw_only=True):
    """The values that are the same for all containers. `runtime` is a real path."""

    api_version: str
    cores: float
    runtime: str
    gid: int
    proxy_variables: dict[str, str] = {}
    oci_runtime: str | None = None
    """The engine's name of the OCI runtime; None: its default."""
    cgroup_parent: str | None = None
    """Where the cgroups of containers in the node's network lie; None: where the engine puts
    all."""


def container(spec: ContainerSpec, node: NodeValues, name: str, network: str) -> dict[str, Any]:
    """Return the arguments of docker-py's `create_container`, without labels."""
    bridge = spec.network_mode is NetworkMode.BRIDGE
    socket = f"{_RUN_FOLDER}/{RUNNER_SOCKET_NAME}"
    command = ["--task", _TASK_FOLDER, "--socket", socket, "--peers", "node"]
    return {
        "name": name,
        "image": spec.image,
        "entrypoint": [ENTRYPOINT],
        "command": command,
        "user": spec.user,
        "hostname": spec.hostname if bridge else None,
        "environment": dict(node.proxy_variables),
        # An image's own check would be run by the engine, outside of the job's limits, as often as
        # the image says: with an interval of a millisecond, that takes the node's processors.
        "healthcheck": {"test": ["NONE"]},
        # Of an engine that ends, and of `docker stop`: the first process handles SIGTERM alone.
        "stop_signal": "SIGTERM",
        "host_config": _host_config(spec, node, network),
    }


def _host_config(spec: ContainerSpec, node: NodeValues, network: str) -> dict[str, Any]:
    options = spec.options
    host: dict[str, Any] = HostConfig(
        version=node.api_version,
        mounts=[
            Mount(_RUNTIME, node.runtime, type="bind", read_only=True),
            Mount(_TASK_FOLDER, spec.job_folder, type="bind"),
            Mount(_RUN_FOLDER, spec.run_folder, type="bind"),
            *map(mount, spec.mounts),
        ],
        network_mode=network,
        mem_limit=spec.memory,
        memswap_limit=spec.memory,  # together with swap: the engine would add as much again
        shm_size=spec.shm_size,
        # Without a limit, a fork bomb takes all process numbers of the node (kernel.pid_max).
        pids_limit=options.pids_limit or _MAX_PROCESSES,
        # Whatever user the image has, the node's group opens the folders of the task to it.
        group_add=[str(node.gid)],
        # A new start is the controller's decision.
        restart_policy={"Name": "no"},
        privileged=options.privileged,
        cap_add=list(options.cap_add) or None,
        cap_drop=list(options.cap_drop) or None,
        ulimits=[DockerUlimit(name=u.name, soft=u.soft, hard=u.hard) for u in options.ulimits],
        read_only=options.read_only_root,
        init=options.init or None,
        tmpfs=_writable_folders(spec) if options.read_only_root else None,
        # Docker's own log of a container has no limit; the job's output goes through the runner.
        log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "1m", "max-file": "1"}),
        runtime=node.oci_runtime,
        cgroup_parent=node.cgroup_parent if spec.network_mode is NetworkMode.HOST else None,
    )
    # Docker refuses more CPUs than the node has, too.
    host["NanoCpus"] = int(max(min(spec.cpu, node.cores or spec.cpu), _MIN_CPU_PERIODS) * 1e9)
    return host


def at_address(network: str, address: str) -> dict[str, Any]:
    """Return the argument of `create_container` for a certain address in a network."""
    return {"EndpointsConfig": {network: {"IPAMConfig": {"IPv4Address": address}}}}


def _writable_folders(spec: ContainerSpec) -> dict[str, str]:
    """Return writable folders for temporary files, unless a volume is mounted there."""
    taken = {mount.target for mount in spec.mounts}
    return {folder: "mode=1777" for folder in ("/tmp", "/run") if folder not in taken}


def mount(wanted: MountSpec) -> Mount:
    kind = wanted.kind
    match kind:
        case VolumeKind.TMPFS:
            return Mount(
                wanted.target,
                None,
                type="tmpfs",
                tmpfs_size=wanted.size,
                tmpfs_mode=_TMPFS_MODE,
            )
        case VolumeKind.NAMED:
            return Mount(wanted.target, wanted.source, type="volume", read_only=wanted.read_only)
        case VolumeKind.HOST | VolumeKind.DEVICE:
            return Mount(wanted.target, wanted.source, type="bind", read_only=wanted.read_only)
        case _:
            assert_never(kind)


def require_oci_runtime(name: str | None, info: Mapping[str, Any]) -> None:
    """Raise NodeFault for an OCI runtime that the engine does not know."""
    known = sorted(info.get("Runtimes") or ())
    if name not in (None, AUTO_RUNTIME, *known):
        raise NodeFault(
            f"--oci-runtime {name}: the engine knows {', '.join(known) or 'no runtime by name'}; "
            f'add it to "runtimes" in /etc/docker/daemon.json, or leave the option out'
        )


def explain_start(text: str) -> str:
    """Return the engine's error, with what the user can do."""
    if "rlimit" in text.lower():
        return (
            "the node's engine may not raise the limits that `ulimits` asks for; ask for "
            f"less, or run the engine with CAP_SYS_RESOURCE ({text[:200]})"
        )
    if "container-init" in text:
        return (
            "the node's Podman has no `catatonit`, for which `init` asks: leave it out (orphans "
            f"are reaped anyway), or install it on the node ({text[:200]})"
        )
    if "docker-init" in text:
        return (
            "the node's Docker engine has no `docker-init`, for which `init` asks: leave it out "
            f"(orphans are reaped anyway), or install tini on the node ({text[:200]})"
        )
    return text


def cgroup_parent(info: Mapping[str, Any]) -> str | None:
    """Return the parent of the cgroups by which the node's firewall knows jobs in its network
    (packer/firewall-jobs.nft). `info` is the engine's answer about itself; None: a kernel with
    cgroup v1, whose firewall cannot know them."""
    if str(info.get("CgroupVersion")) != "2":
        return None
    return "fairlead.slice" if info.get("CgroupDriver") == "systemd" else "/fairlead"


def runtime_path(runtime: Path) -> str:
    """Return the real path: `current` may change while containers still need their first
    runtime."""
    return str(runtime.resolve())
