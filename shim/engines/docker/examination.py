"""Examines the Docker engine of a node: what it can, and whether a container starts."""

from __future__ import annotations

import io
import os
import socket
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import msgspec
import requests.exceptions

from shim.examination import INSTALL, Asked, NodeSetup, bad, ok, warn
from shim.schemas import Finding

IMAGES = "var/lib/docker"
"""The folder of the images, below the root."""
_CONTAINER_SECONDS = 60
_SHIM_SECONDS = 10.0
_ENTRYPOINT = "/opt/fairlead/runtime/bin/fairlead-entrypoint"


def examine(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    failures = (docker.errors.DockerException, requests.exceptions.RequestException)
    url = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        api = docker.APIClient(base_url=url, version="auto", timeout=_CONTAINER_SECONDS)
    except failures as error:
        yield bad(f"the Docker engine does not answer: {error}", "systemctl restart docker")
        return
    try:
        yield from judge_engine(api.info())
        yield from judge_networks(networks_of_shim(node.socket))
        yield _try_container(api, node.runtime)
    except failures as error:
        fix = "journalctl -u docker says more"
        yield bad(f"a container does not start: {error}", fix)
    finally:
        api.close()


def judge_engine(info: dict[str, Any]) -> Iterator[Finding]:
    """The engine's answer about itself."""
    yield ok(f"Docker {info.get('ServerVersion')} answers")
    lost = [name for name in ("MemoryLimit", "CpuCfsQuota", "PidsLimit") if not info.get(name)]
    if lost:
        yield bad(f"Docker cannot keep {', '.join(lost)}", "enable these cgroups, restart Docker")
    if not info.get("LiveRestoreEnabled"):
        fix = f"{INSTALL}: it sets live-restore in /etc/docker/daemon.json"
        yield warn("jobs end when the Docker engine is restarted", fix)


def judge_networks(count: int | None) -> Iterator[Finding]:
    """`count`: how many runs can have a network here at once; None: the shim does not answer."""
    if count == 0:
        fix = "--job-networks RANGE in /etc/fairlead/shim.env, with addresses that nothing uses"
        yield bad("no addresses are left for the networks of runs", fix)
    elif count is not None:
        yield ok(f"{count} runs can have a network at once")


def networks_of_shim(path: Path) -> int | None:
    """Ask the shim itself: only it knows its options."""
    try:
        with socket.socket(socket.AF_UNIX) as shim, shim.makefile("rb") as answer:
            shim.settimeout(_SHIM_SECONDS)
            shim.connect(str(path))
            shim.sendall(b"GET /v1/node HTTP/1.0\r\n\r\n")
            body = answer.read().partition(b"\r\n\r\n")[2]
        return msgspec.json.decode(body, type=_NetworksOfNode).networks
    except (OSError, msgspec.DecodeError):
        return None


class _NetworksOfNode(msgspec.Struct, frozen=True):
    networks: int | None = None


def _try_container(api: Any, runtime: Path) -> Finding:
    """Its image is empty: all that runs in it is the runtime, as in every job."""
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    name = f"fairlead-doctor:{uuid.uuid4().hex[:12]}"
    api.import_image_from_data(empty.getvalue(), repository=name.split(":")[0], tag=name[16:])
    container = None
    try:
        mount = [f"{runtime.resolve()}:/opt/fairlead/runtime:ro"]
        host = api.create_host_config(binds=mount, network_mode="none")
        command = ["--help"]
        container = api.create_container(
            name, command, entrypoint=[_ENTRYPOINT], host_config=host, environment={}
        )["Id"]
        api.start(container)
        status = api.wait(container, timeout=_CONTAINER_SECONDS)["StatusCode"]
        output = api.logs(container).decode(errors="replace").strip()
    finally:
        if container is not None:
            api.remove_container(container, force=True)
        api.remove_image(name, force=True)
    if status == 0:
        return ok("a container with the runtime starts")
    return bad(f"a container with the runtime ends with {status}: {output[-300:]}", INSTALL)
