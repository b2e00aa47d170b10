"""What an engine says about its images: where they lie, and why one cannot be pulled."""

from __future__ import annotations

from typing import Any

import pytest

from shim.engines.base import ImageProblem
from shim.engines.docker.images import explain, folder_of

OWN: dict[str, Any] = {
    "DockerRootDir": "/srv/docker",
    "DriverStatus": [["Backing Filesystem", "extfs"]],
}
IN_CONTAINERD: dict[str, Any] = {
    "DockerRootDir": "/srv/docker",
    "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
    "Containerd": {"Address": "/run/containerd/containerd.sock"},
}
FULL = (
    "failed to extract layer (application/vnd.docker.image.rootfs.diff.tar.gzip sha256:"
    + "81a33bbc510448ac" * 4
    + ") to overlayfs as extract-374 "
    + "/data/containerd/daemon/tmpmounts" * 8
    + ": no space left on device"
)


@pytest.mark.parametrize(
    ("info", "folder"),
    [
        (OWN, "/srv/docker"),
        (OWN | {"Containerd": IN_CONTAINERD["Containerd"]}, "/srv/docker"),
        (IN_CONTAINERD, "/var/lib/containerd"),
        # dockerd's own containerd has its folder below dockerd's.
        (IN_CONTAINERD | {"Containerd": {"Address": "/run/docker/c.sock"}}, "/srv/docker"),
        (OWN | {"DriverStatus": None}, "/srv/docker"),
    ],
)
def test_the_disk_of_the_images_is_that_of_the_store_that_has_them(
    info: dict[str, Any], folder: str
) -> None:
    assert folder_of(info) == folder


def test_a_cause_at_the_end_of_a_long_message_is_found_and_shown() -> None:
    error = explain("tool:1", None, FULL)
    assert error.problem is ImageProblem.NO_SPACE
    assert "failed to extract layer" in str(error)
    assert "no space left on device" in str(error)
    assert len(str(error)) < len(FULL)


def test_a_message_of_any_length_is_cut() -> None:
    assert len(str(explain("tool:1", None, "x" * (1 << 20)))) < 500
