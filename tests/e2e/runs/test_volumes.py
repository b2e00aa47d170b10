"""Volumes as their users and the node's operator see them, on real mounts and a real device."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shim.errors import VolumeError
from shim.volumes.mounter import KernelMounter, mounts_below
from tests.support.daemons import run
from tests.support.docker_daemon import DockerDaemon
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.ssh_daemon import SshDaemon
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


class Disk:
    """A loop device, with a filesystem unless it is to be `empty`."""

    def __init__(self, file: Path, *, empty: bool = False) -> None:
        with file.open("wb") as image:
            image.truncate(16 << 20)
        if not empty:
            run(["mkfs.ext4", "-q", file])
        self.path = run(["losetup", "--find", "--show", file]).strip()

    def is_mounted(self) -> bool:
        mounted = Path("/proc/self/mounts").read_text().splitlines()
        return self.path in (line.split()[0] for line in mounted)

    def close(self) -> None:
        run(["losetup", "--detach", self.path])


@pytest.fixture(scope="module")
def offered(testbed_folder: Path, numbers: Iterator[int]) -> Iterator[Path]:
    folder = testbed_folder / f"offered{next(numbers)}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def disk(testbed_folder: Path) -> Iterator[Disk]:
    made = Disk(testbed_folder / "disk.img")
    yield made
    made.close()


@pytest.fixture(scope="module")
def empty_disk(testbed_folder: Path) -> Iterator[Disk]:
    made = Disk(testbed_folder / "empty.img", empty=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def lab(
    dockerd: DockerDaemon,
    sshd: SshDaemon,
    runtime: Path,
    busybox_image: str,
    testbed_folder: Path,
    numbers: Iterator[int],
    offered: Path,
    disk: Disk,
    empty_disk: Disk,
) -> Iterator[RunLab]:
    folder = testbed_folder / f"lab{next(numbers)}"
    prefixes = [str(offered), disk.path, empty_disk.path]
    options: list[str | Path] = ["--runtime", runtime]
    for prefix in prefixes:
        options += ["--volume-prefix", prefix]
    shim = ShimProcess(folder / "node", "docker", *options, env=dockerd.env, outlasts_tests=True)
    controller = ControllerProcess(folder / "controller", outlasts_tests=True)
    shim.start()
    controller.start()
    sshd.authorize(controller.public_key)
    made = RunLab(controller, shim, dockerd, sshd, sshd.port, folder, busybox_image)
    made.connect_node("n1", "--host-key", sshd.host_key)
    yield made
    controller.close()
    shim.close()


def mounts(lab: RunLab) -> list[Path]:
    return mounts_below(lab.shim.data / "mounts")


def until_released(lab: RunLab) -> None:
    wait_until(lambda: not mounts(lab), what="the volumes to be unmounted")


def failure(lab: RunLab, name: str, *volumes: Any) -> tuple[str, str]:
    lab.submit(name, commands=["true"], volumes=list(volumes))
    lab.wait_for(name, "failed")
    (attempt,) = lab.attempts(name)
    return attempt["termination_reason"], attempt["message"]


def test_a_folder_of_the_node_is_read_and_written_and_let_go(lab: RunLab, offered: Path) -> None:
    (offered / "in").mkdir()
    (offered / "in" / "greeting").write_text("hello\n")
    script = "cat /data/greeting; echo bye > /data/answer"
    result = lab.apply("folder", commands=[script], volumes=[f"{offered}/in:/data"]).succeeded()
    assert result.output == "hello\n"
    assert (offered / "in" / "answer").read_text() == "bye\n"
    until_released(lab)
    assert (offered / "in" / "greeting").exists()


def test_a_read_only_volume_cannot_be_written_to(lab: RunLab, offered: Path) -> None:
    result = lab.apply("ro", commands=["echo x > /data/x"], volumes=[f"{offered}:/data:ro"])
    assert result.status == 1
    assert "Read-only file system" in result.errors
    assert not (offered / "x").exists()


def test_a_file_of_the_node_can_be_a_volume(lab: RunLab, offered: Path) -> None:
    (offered / "file").write_text("content\n")
    volumes = [f"{offered}/file:/etc/settings:ro"]
    result = lab.apply("file", commands=["cat /etc/settings"], volumes=volumes).succeeded()
    assert result.output == "content\n"
    until_released(lab)


def test_a_path_that_no_operator_allows_is_refused_at_submit(lab: RunLab) -> None:
    refused = lab.apply("below", commands=["true"], volumes=["/etc:/data"])
    assert refused.status != 0
    assert "volumes: no node could ever hold it: needs /etc as a volume" in refused.errors


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("absent", "{offered}/absent", "there is no {offered}/absent on this node"),
        ("led-out", "{offered}/link/passwd", "leads out of {offered}"),
        ("to-the-records", "{offered}/records", "leads out of {offered}"),
        ("a-pipe", "{offered}/pipe", "neither a folder nor a regular file"),
    ],
)
def test_a_refused_volume_is_a_volume_error_that_says_why(
    lab: RunLab, offered: Path, name: str, source: str, words: str
) -> None:
    if name == "led-out":
        (offered / "link").symlink_to("/etc")
    if name == "to-the-records":
        (offered / "records").symlink_to(lab.shim.data)
    if name == "a-pipe":
        os.mkfifo(offered / "pipe")
    reason, message = failure(lab, name, f"{source.format(offered=offered)}:/data")
    assert reason == "volume_error"
    assert words.format(offered=offered) in message
    until_released(lab)


def test_a_link_that_stays_inside_is_followed(lab: RunLab, offered: Path) -> None:
    (offered / "real").mkdir()
    (offered / "real" / "word").write_text("inside\n")
    (offered / "alias").symlink_to("real")
    volumes = [f"{offered}/alias:/data"]
    result = lab.apply("alias", commands=["cat /data/word"], volumes=volumes).succeeded()
    assert result.output == "inside\n"


def test_an_optional_volume_that_is_not_there_is_left_out(lab: RunLab, offered: Path) -> None:
    volume = {"instance_path": f"{offered}/absent", "path": "/data", "optional": True}
    result = lab.apply("optional", commands=["ls /data 2>&1 || true"], volumes=[volume])
    assert "No such file" in result.succeeded().output


def test_a_named_volume_outlives_the_run_that_made_it(lab: RunLab, dockerd: DockerDaemon) -> None:
    write, read = ["echo kept > /data/f"], ["cat /data/f"]
    lab.apply("named1", commands=write, volumes=["e2e-kept:/data"]).succeeded()
    result = lab.apply("named2", commands=read, volumes=["e2e-kept:/data"]).succeeded()
    assert result.output == "kept\n"
    wait_until(lambda: not dockerd.docker("ps", "-aq"))
    dockerd.docker("volume", "rm", "fairlead-e2e-kept")


def test_a_tmpfs_has_its_size(lab: RunLab) -> None:
    volume = {"tmpfs": "3MiB", "path": "/scratch"}
    commands = ["df -k /scratch | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2"]
    assert lab.apply("tmpfs", commands=commands, volumes=[volume]).succeeded().output == "3072\n"


def test_a_device_is_mounted_while_the_job_is_there_and_keeps_what_it_wrote(
    lab: RunLab, disk: Disk
) -> None:
    volume = {"device": disk.path, "path": "/data"}
    lab.submit("device1", commands=["echo kept > /data/f", UNTIL_ASKED], volumes=[volume])
    lab.wait_for("device1", "running")
    assert disk.is_mounted()
    lab.let_go("device1")
    assert lab.wait_for("device1")["status"] == "done"
    wait_until(lambda: not disk.is_mounted(), what="the device to be unmounted")
    result = lab.apply("device2", commands=["cat /data/f"], volumes=[volume]).succeeded()
    assert result.output == "kept\n"
    until_released(lab)


def test_a_device_without_a_filesystem_is_a_volume_error(lab: RunLab, empty_disk: Disk) -> None:
    reason, message = failure(lab, "empty", {"device": empty_disk.path, "path": "/data"})
    assert (reason, "has no filesystem" in message) == ("volume_error", True)


def test_a_device_that_the_node_itself_has_mounted_is_not_handed_out(
    lab: RunLab, disk: Disk, tmp_path: Path
) -> None:
    run(["mount", disk.path, tmp_path])
    try:
        reason, message = failure(lab, "taken", {"device": disk.path, "path": "/data"})
    finally:
        run(["umount", tmp_path])
    assert (reason, "is mounted on the node itself" in message) == ("volume_error", True)


def test_a_shim_that_was_killed_unmounts_what_its_former_life_mounted(
    lab: RunLab, offered: Path, disk: Disk
) -> None:
    volumes = [f"{offered}:/data", {"device": disk.path, "path": "/disk"}]
    lab.start("killed", commands=[UNTIL_ASKED], volumes=volumes)
    before = mounts(lab)
    lab.shim.restart()
    assert mounts(lab) == before
    lab.let_go("killed")
    assert lab.wait_for("killed")["status"] == "done"
    until_released(lab)
    assert not disk.is_mounted()
    assert offered.is_dir()


def test_a_folder_that_turns_into_a_link_meanwhile_never_leads_out(tmp_path: Path) -> None:
    """As a job would do that may write beside the volume of the next task."""
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    (allowed / "inner").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").touch()
    (allowed / "trap").symlink_to(outside)
    mounter = KernelMounter(tmp_path / "data" / "mounts")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(allowed / "inner", allowed / "spare")
            os.rename(allowed / "trap", allowed / "inner")
            os.rename(allowed / "inner", allowed / "trap")
            os.rename(allowed / "spare", allowed / "inner")

    attacker = threading.Thread(target=swap)
    attacker.start()
    tries = mounted = refused = 0
    folder = tmp_path / "data" / "mounts" / "t1"
    until = time.monotonic() + 60
    try:
        while (tries < 300 or not (mounted and refused)) and time.monotonic() < until:
            tries += 1
            try:
                is_there = mounter.bind(allowed, "inner", folder / "0")
            except VolumeError:
                refused += 1
                continue
            mounted += is_there
            assert not (folder / "0" / "secret").exists()
            mounter.release(folder)
    finally:
        done.set()
        attacker.join()
        mounter.release(folder)
    assert mounted > 0
    assert refused > 0


def test_a_mount_below_a_volume_is_seen_and_stays_when_the_volume_goes(tmp_path: Path) -> None:
    allowed, inner = tmp_path / "allowed", tmp_path / "allowed" / "disk"
    inner.mkdir(parents=True)
    run(["mount", "--bind", tmp_path, tmp_path])
    run(["mount", "--make-shared", tmp_path])
    run(["mount", "-t", "tmpfs", "none", inner])
    mounter = KernelMounter(tmp_path / "data" / "mounts")
    folder = tmp_path / "data" / "mounts" / "t1"
    try:
        (inner / "word").write_text("here")
        assert mounter.bind(allowed, ".", folder / "0")
        assert (folder / "0" / "disk" / "word").read_text() == "here"
        mounter.release(folder)
        assert (inner / "word").read_text() == "here"
        assert not folder.exists()
    finally:
        run(["umount", inner])
        run(["umount", "--lazy", tmp_path])
