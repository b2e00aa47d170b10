"""Device files reach a real container, and only those that were asked for."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import msgspec
import pytest

from fairlead.wire.node import GpuInfo
from shim.engines.docker.handover import Means, hand_over
from shim.gpus.amd.smi import AMD
from shim.gpus.nvidia.nvml import NVIDIA
from tests.support.docker_daemon import DockerDaemon
from tests.unit.shim.gpus.parts import gpu

pytestmark = pytest.mark.e2e

GPUS = (gpu(0), gpu(1))


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A node's /dev, of which each file is a /dev/null."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "infiniband/uverbs0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mknod(tmp_path / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    links = tmp_path / "infiniband/by-ibdev"  # as udev's rules for RDMA make them
    links.mkdir()
    (links / "uverbs-mlx5_0").symlink_to("../uverbs0")
    return tmp_path


@pytest.fixture
def engine(dockerd: DockerDaemon) -> Iterator[Any]:
    api = docker.APIClient(base_url=dockerd.url, version="auto")
    yield api
    api.close()
    dockerd.remove_containers()


def _devices(engine: Any, image: str, uuids: list[str], infiniband: bool, dev: Path) -> list[str]:
    units: tuple[GpuInfo, ...] = GPUS
    handover = hand_over(uuids, units, infiniband, Means(delivery=NVIDIA, dev=dev))
    host = engine.create_host_config(network_mode="none") | handover.host_config
    find = "cd /dev; for f in nvidia* infiniband/*; do echo x > $f && echo $f; done 2>/dev/null"
    made = engine.create_container(image, ["sh", "-c", find], host_config=host)
    engine.start(made["Id"])
    engine.wait(made["Id"])
    return [line for line in engine.logs(made["Id"]).decode().split() if "*" not in line]


def test_a_container_has_its_gpus_files_and_no_others(
    engine: Any, busybox_image: str, dev: Path
) -> None:
    assert _devices(engine, busybox_image, ["GPU-1"], False, dev) == ["nvidia1", "nvidiactl"]


def test_infiniband_reaches_the_container_that_asked(
    engine: Any, busybox_image: str, dev: Path
) -> None:
    assert _devices(engine, busybox_image, [], True, dev) == ["infiniband/uverbs0"]
    assert _devices(engine, busybox_image, [], False, dev) == []


@pytest.mark.parametrize(("given", "opened"), [(True, ["kfd", "dri/renderD129"]), (False, [])])
def test_a_user_opens_amds_files_only_by_the_groups_that_come_with_them(
    engine: Any, busybox_image: str, tmp_path: Path, given: bool, opened: list[str]
) -> None:
    (tmp_path / "dri").mkdir()
    for name in ("kfd", "dri/renderD128", "dri/renderD129"):
        os.mknod(tmp_path / name, stat.S_IFCHR | 0o660, os.makedev(1, 3))
        os.chmod(tmp_path / name, 0o660)
        os.chown(tmp_path / name, 0, 4711)
    units = (msgspec.structs.replace(gpu(1), devices=("/dev/dri/renderD129",)),)
    handover = hand_over(["GPU-1"], units, False, Means(delivery=AMD, dev=tmp_path))
    groups = [str(gid) for gid in handover.groups] if given else None
    host = engine.create_host_config(network_mode="none", group_add=groups) | handover.host_config
    find = "cd /dev; for f in kfd dri/*; do echo x > $f && echo $f; done 2>/dev/null"
    made = engine.create_container(
        busybox_image, ["sh", "-c", find], host_config=host, user="1000:1000"
    )
    engine.start(made["Id"])
    engine.wait(made["Id"])
    assert engine.logs(made["Id"]).decode().split() == opened
