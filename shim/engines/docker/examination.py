"""Examines the Docker engine of a node: what it can, and whether a container starts."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker.errors
import msgspec
import requests.exceptions

from fairlead.wire.decoders import decoder_of
from fairlead.wire.node import Finding, FindingLevel
from shim.engines.docker.api import Client
from shim.examination import INSTALL, Asked, NodeSetup, bad, ok, warn
from shim.settings import NetworkKind
from shim.wires.rules import has_zone

IMAGES = "var/lib/docker"
"""The folder of the images, below the root."""
CRUN = "crun"
FAST_VERSION = 28
_CONTAINER_SECONDS = 60
_SHIM_SECONDS = 10.0
_ENTRYPOINT = "/opt/fairlead/runtime/bin/fairlead-entrypoint"
_EMPTY_TAR = bytes(1024)
"""Two blocks of zeros end an archive (tar(5))."""
_LIMITS = {"mem_limit": 64 << 20, "memswap_limit": 64 << 20, "pids_limit": 64, "nano_cpus": 10**9}


def examine(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    failures = (docker.errors.DockerException, requests.exceptions.RequestException)
    url = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        api = Client(base_url=url, version="auto", timeout=_CONTAINER_SECONDS)
    except failures as error:
        yield bad(f"the Docker engine does not answer: {error}", "systemctl restart docker")
        return
    try:
        info = api.info()
        yield from judge_engine(info)
        yield from judge_networks(networks_of_shim(node.socket), asked)
        yield try_container(api, node.runtime)
        yield from judge_crun(info, lambda: try_container(api, node.runtime, CRUN))
    except failures as error:
        fix = "journalctl -u docker says more"
        yield bad(f"a container does not start: {error}", fix)
    finally:
        api.close()


def judge_engine(info: dict[str, Any]) -> Iterator[Finding]:
    """The engine's answer about itself."""
    version = str(info.get("ServerVersion"))
    major = version.partition(".")[0]
    hint = ""
    # Before 28.0 dockerd runs itself again as a hook of each container (moby #40516).
    if major.isdecimal() and int(major) < FAST_VERSION:
        hint = f"; {FAST_VERSION} or newer is recommended: containers start sooner"
    yield ok(f"Docker {version} answers{hint}")
    lost = [name for name in ("MemoryLimit", "CpuCfsQuota", "PidsLimit") if not info.get(name)]
    if lost:
        yield bad(f"Docker cannot keep {', '.join(lost)}", "enable these cgroups, restart Docker")
    if not info.get("LiveRestoreEnabled"):
        fix = f"{INSTALL}: it sets live-restore in /etc/docker/daemon.json"
        yield warn("jobs end when the Docker engine is restarted", fix)


def judge_crun(info: dict[str, Any], start: Callable[[], Finding]) -> Iterator[Finding]:
    """Try whether crun starts containers, where the engine knows it: it is faster than runc, and
    refuses some nodes, for instance those with cgroups of both versions."""
    if CRUN not in (info.get("Runtimes") or ()) or info.get("DefaultRuntime") == CRUN:
        return
    fix = "leave --oci-runtime crun out of /etc/fairlead/shim.env; without it, runc is used here"
    try:
        found = start()
    except docker.errors.APIError as error:
        yield warn(f"crun does not start a container: {str(error.explanation)[-300:]}", fix)
        return
    if found.level is FindingLevel.OK:
        yield ok("crun starts containers, which takes less time than with runc")
    else:
        yield warn(f"with crun {found.message}", fix)


def judge_networks(found: NetworksOfNode, asked: Asked) -> Iterator[Finding]:
    """Judge what the shim says of its networks."""
    if found.networks == 0:
        fix = "--job-networks RANGE in /etc/fairlead/shim.env, with addresses that nothing uses"
        yield bad("no addresses are left for the networks of runs", fix)
    elif found.networks is not None:
        one = "job" if found.network_kind == NetworkKind.AGENT else "run"
        yield ok(f"{found.networks} {one}s can have a network at once")
    if found.network_kind == NetworkKind.AGENT:
        yield ok("the shim connects containers itself")
        firewalld = asked(("nft", "list", "table", "inet", "firewalld"))
        if firewalld.status == 0 and not has_zone(firewalld.output):
            yield warn(
                "firewalld runs, and may reject what jobs send",
                "give it a zone for them (docs/node-options.md, firewalld), or restart the shim, "
                "which then takes the engine's networks (--networks auto)",
            )
    elif found.network_why is not None:
        yield ok(f"the engine connects containers, not the shim: {found.network_why}")
    elif found.network_kind is not None:
        yield ok("the engine connects containers")


def networks_of_shim(path: Path) -> NetworksOfNode:
    """Ask the shim itself: only it knows its options. It may not answer: then nothing is known."""
    try:
        with socket.socket(socket.AF_UNIX) as shim, shim.makefile("rb") as answer:
            # A socket waits for ever by default (socket(7)), and a shim that hangs is what the
            # doctor looks for.
            shim.settimeout(_SHIM_SECONDS)
            shim.connect(str(path))
            shim.sendall(b"GET /v1/node HTTP/1.0\r\n\r\n")
            body = answer.read().partition(b"\r\n\r\n")[2]
        return decoder_of(NetworksOfNode).decode(body)
    except (OSError, msgspec.DecodeError):
        return NetworksOfNode()


class NetworksOfNode(msgspec.Struct, frozen=True, kw_only=True):
    """What a node tells of the networks of its runs (`fairlead.wire.shim.NodeInfo`)."""

    networks: int | None = None
    network_kind: str | None = None
    network_why: str | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried. `name`: of the container, where one of an earlier trial is removed; None: one
    that nobody has. `limits`: the container has those that every job has."""

    name: str | None = None
    limits: bool = False


_USUAL_TRIAL = Trial()


def _imported(api: Any, name: str) -> str:
    """Return the id of an empty image: Podman puts the image of an import under a name of another
    registry. Raises APIError."""
    answer = api.import_image_from_data(_EMPTY_TAR, repository=name, tag="latest")
    last = msgspec.json.decode(answer.splitlines()[-1])
    if "status" not in last:
        # As on a full disk: the engine has answered with 200 before it failed.
        why = str(last.get("error", last))
        raise docker.errors.APIError(why, explanation=why)
    return str(last["status"])


def try_container(
    api: Any, runtime: Path, oci_runtime: str | None = None, trial: Trial = _USUAL_TRIAL
) -> Finding:
    """Its image is empty: all that runs in it is the runtime, as in every job."""
    name = trial.name or f"fairlead-doctor-{uuid.uuid4().hex[:12]}"
    if trial.name is not None:
        with contextlib.suppress(docker.errors.NotFound):
            api.remove_container(name, force=True)
        with contextlib.suppress(docker.errors.NotFound):
            api.remove_image(name, force=True)
    image = _imported(api, name)
    container = None
    try:
        mount = [f"{runtime.resolve()}:/opt/fairlead/runtime:ro"]
        limits = _LIMITS if trial.limits else {}
        host = api.create_host_config(
            binds=mount, network_mode="none", runtime=oci_runtime, **limits
        )
        container = api.create_container(
            image,
            ["--help"],
            name=name,
            entrypoint=[_ENTRYPOINT],
            host_config=host,
            environment={},
        )["Id"]
        api.start(container)
        status = api.wait(container, timeout=_CONTAINER_SECONDS)["StatusCode"]
        output = api.logs(container).decode(errors="replace").strip()
    finally:
        if container is not None:
            api.remove_container(container, force=True)
        api.remove_image(image, force=True)
    if status == 0:
        return ok("a container with the runtime starts")
    return bad(f"a container with the runtime ends with {status}: {output[-300:]}", INSTALL)
