"""One Podman for all tests of it, in a network namespace of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import images
from tests.support.daemons import inside, run
from tests.support.docker_registry import DockerRegistry
from tests.support.podman_daemon import PodmanDaemon
from tests.support.ssh_daemon import CHECKOUT

BUSYBOX = "docker.io/library/busybox:latest"


@pytest.fixture(scope="session")
def podman_network(numbers: Iterator[int]) -> Iterator[str]:
    name = f"fl-podman-{os.getpid()}-{next(numbers)}"
    run(["ip", "netns", "add", name])
    run(["ip", "-n", name, "link", "set", "lo", "up"])
    yield name
    run(["ip", "netns", "delete", name])


@pytest.fixture(scope="session")
def private(testbed_folder: Path, podman_network: str) -> Iterator[DockerRegistry]:
    registry = DockerRegistry(testbed_folder / "podman-registry", "anna:s3cret", podman_network)
    registry.start()
    yield registry
    registry.stop()


@pytest.fixture(scope="session")
def podman(
    testbed_folder: Path, podman_network: str, private: DockerRegistry
) -> Iterator[PodmanDaemon]:
    folder = testbed_folder / "podman"
    folder.mkdir()
    run([*inside(podman_network), "nft", "-f", _firewall(folder)])
    daemon = PodmanDaemon(folder, podman_network, plain_http=private.address)
    daemon.start()
    daemon.import_image(BUSYBOX, images.busybox_root(folder / "busybox"))
    yield daemon
    daemon.stop()


def _firewall(folder: Path) -> Path:
    """A node's own rules, for a user that this machine has."""
    rules = (CHECKOUT / "packer/firewall.nft").read_text()
    for user in ("fairlead-gateway", "fairlead"):
        rules = rules.replace(f'= "{user}"\n', '= "daemon"\n')
    (folder / "firewall.nft").write_text(
        rules.replace("/etc/fairlead/firewall.d", str(folder / "firewall.d"))
    )
    return folder / "firewall.nft"
