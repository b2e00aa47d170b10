"""Podman as an `Engine`: the Docker engine over Podman's own socket, and where it differs.

Podman has no daemon of its own: `podman system service` answers to Docker's API, and each container
has a monitor (conmon), so containers outlive every end of the service. Its events lie in a file or
in the journal. What was measured here is Podman 4.3 of Debian 12 as root, with netavark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker.errors
import requests.exceptions

from fairlead.wire.node import EngineKind, Finding
from shim.engines.docker import api, examination
from shim.engines.docker.dialect import Dialect
from shim.engines.docker.engine import DockerEngine
from shim.examination import Asked, NodeSetup, bad, ok, warn
from shim.settings import Settings

IMAGES = "var/lib/containers/storage"
"""The folder of the images, below the root."""


def _cgroups(container_id: str) -> tuple[str, ...]:
    """Return the places of both of Podman's cgroup managers, and ours for containers in the node's
    network."""
    name = f"libpod-{container_id}"
    scope = f"{name}.scope"
    return (
        *(f"machine.slice/{scope}", f"machine.slice/{scope}/container"),
        *(f"libpod_parent/{name}", f"fairlead.slice/{scope}", f"fairlead/{name}"),
    )


PODMAN = Dialect(
    kind=EngineKind.PODMAN,
    name="Podman",
    variable="CONTAINER_HOST",
    usual_url="unix:///run/podman/podman.sock",
    when_silent="is Podman installed, and does `systemctl is-active podman.socket` say so? "
    "(CONTAINER_HOST is its address)",
    cgroups=_cgroups,
    # It translates "died" in its answers to "die", as Docker says, but not in filters.
    end_events=("died", "remove", "kill"),
    names_signals=False,
    # Its stream answers before it reads: what happens in between is lost.
    look_again=2.0,
    filters_past=True,
    # All of them come with status 500.
    missing=("no such container",),
    conflicts=("that name is already in use", "can only kill running containers"),
    last_of_pull="Download complete",
    # netavark lets bridges reach each other unless both of them say this.
    network_options={"isolate": "true"},
    asks_registries=False,
    mixes_digests=True,
    # DeviceRequests are passed over without a word, so a job would start without its GPUs.
    gives_named_devices=False,
    makes_missing_sources=True,
)


def engine(settings: Settings, install_id: str) -> DockerEngine:
    return DockerEngine(settings, install_id, dialect=PODMAN)


def find_install(data: Path) -> str | None:
    return api.find_install(PODMAN, data)


def examine(node: NodeSetup, asked: Asked) -> Iterator[Finding]:
    failures = (docker.errors.DockerException, requests.exceptions.RequestException)
    try:
        client = api.Client(base_url=PODMAN.url, version="auto", timeout=60)
    except failures as error:
        fix = "systemctl enable --now podman.socket"
        yield bad(f"Podman's service does not answer: {error}", fix)
        return
    try:
        yield from judge(client.info())
        yield from judge_backend(asked)
        yield from examination.judge_networks(examination.networks_of_shim(node.socket), asked)
        yield examination.try_container(client, node.runtime)
    except failures as error:
        yield bad(f"a container does not start: {error}", "journalctl -u podman says more")
    finally:
        client.close()


def judge(info: dict[str, Any]) -> Iterator[Finding]:
    """Judge Podman's answer about itself."""
    yield ok(f"Podman {info.get('ServerVersion')} answers")
    lost = [name for name in ("MemoryLimit", "CpuCfsQuota", "PidsLimit") if not info.get(name)]
    if lost:
        yield bad(f"Podman cannot keep {', '.join(lost)}", "enable these cgroups, and reboot")


def judge_backend(asked: Asked) -> Iterator[Finding]:
    """Judge what makes the networks: netavark alone keeps the addresses that a task is given."""
    answer = asked(("podman", "info", "--format", "{{.Host.NetworkBackend}}"))
    if answer.status == 0 and answer.output.strip() != "netavark":
        yield warn(
            f"Podman makes its networks with {answer.output.strip()}, which Fairlead was not tried "
            "with",
            'install netavark, and set network_backend = "netavark" in containers.conf',
        )
