"""Each step of setting a task up can be done and undone again: a crash walks the list anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.wire.shim import (
    ContainerOptions,
    Fence,
    NetworkMode,
    PullPolicy,
    TaskInfo,
    TaskStatus,
    TaskTimes,
    VolumeKind,
    VolumeMount,
)
from shim.daemon import disk_threads
from shim.engines.base import ContainerState, ImageInfo, NodeFault
from shim.errors import VolumeError
from shim.gpus.base import GpuDelivery
from shim.image_cache.access import ImageAccess
from shim.image_cache.images import Images
from shim.node.pythons import Pythons
from shim.state.events import EventLog
from shim.state.records import TaskRecord, hash_of
from shim.tasks import driver
from shim.tasks.steps import folders
from shim.tasks.steps.base import RunLocks, Step, StepContext
from shim.tasks.steps.container import Container
from shim.tasks.steps.image import Image
from shim.tasks.steps.volumes import Volumes, release_strays
from shim.tasks.task import TaskState
from shim.volumes.mounter import Mounter
from tests.doubles.engines import MemoryEngine, MemoryHost
from tests.doubles.mounters import FailingMounter, FullMounter, MemoryMounter, WatchedMounter
from tests.doubles.records import MemoryRecords
from tests.support.waiting import LONG, eventually
from tests.unit.shim.parts import RUN, request, settings

VOLUMES = (
    VolumeMount(kind=VolumeKind.HOST, source="/mnt/d/a", target="/a", read_only=True),
    VolumeMount(kind=VolumeKind.HOST, source="/mnt/d/none", target="/b", optional=True),
    VolumeMount(kind=VolumeKind.NAMED, source="data", target="/c"),
    VolumeMount(kind=VolumeKind.TMPFS, target="/d", size=1 << 20),
    VolumeMount(kind=VolumeKind.DEVICE, source="/dev/vdb", target="/e"),
)
ALL_STEPS = [step for stage in driver.STAGES for step in stage]


class Bench:
    """A task and all that its steps work on."""

    def __init__(self, ctx: StepContext, host: MemoryHost, mounter: MemoryMounter) -> None:
        self.ctx = ctx
        self.host = host
        self.mounter = mounter

    def facts(self) -> dict[str, Any]:
        """The state that a second doing must leave as it is."""
        task_id = self.ctx.task.info.id
        folders = (
            self.ctx.settings.job_folder(task_id),
            self.ctx.settings.socket_folder(task_id),
        )
        return {
            "containers": {
                key: (container.state, container.starts)
                for key, container in self.host.containers.items()
            },
            "networks": set(self.host.networks),
            "volumes": set(self.host.volumes),
            "mounted": dict(self.mounter.mounted),
            "folders": [folder.exists() for folder in folders],
            "image": self.ctx.image,
            "mounts": self.ctx.mounts,
            "status": self.ctx.task.info.status,
        }


@asynccontextmanager
async def bench(
    folder: Path, mounter: MemoryMounter | None = None, **changes: Any
) -> AsyncIterator[Bench]:
    where = settings(folder)
    where.data.mkdir(parents=True, exist_ok=True)
    prefixes = (Path("/mnt/d"), Path("/dev/vdb"))
    where = type(where)(
        data=where.data, socket=where.socket, gid=where.gid, volume_prefixes=prefixes
    )
    host = MemoryHost()
    engine = MemoryEngine(host)
    known: Mounter = mounter or MemoryMounter("/mnt/d/a", "/dev/vdb")
    wanted = request(**{"volumes": VOLUMES, **changes})
    threads = disk_threads()
    ctx = StepContext(
        task=TaskState(_record(wanted), MemoryRecords(), EventLog(epoch="1-x")),
        engine=engine,
        settings=where,
        executor=threads,
        run_locks=RunLocks(),
        run_is_used=lambda: False,
        addresses_of_run=frozenset,
        gpus=lambda: (),
        gpu_delivery=GpuDelivery(),
        images=Images(engine, MemoryRecords(), ImageAccess(engine, MemoryRecords()), 30.0),
        mounter=known,
        pythons=Pythons(where),
    )
    try:
        assert isinstance(known, MemoryMounter)
        yield Bench(ctx, host, known)
    finally:
        await ctx.images.close()
        threads.shutdown()


def _record(wanted: Any) -> TaskRecord:
    return TaskRecord(
        request=wanted,
        body_hash=hash_of(wanted),
        had_credentials=False,
        fence=Fence(1, 1),
        info=TaskInfo(
            id="t1",
            run_id=RUN,
            run_name="fair-wind",
            allocation_id="place-1",
            status=TaskStatus.PENDING,
            image=wanted.image,
            network_mode=NetworkMode.BRIDGE,
            times=TaskTimes(submitted_at=0.0),
        ),
    )


@pytest.mark.parametrize("step", ALL_STEPS, ids=lambda step: type(step).__name__)
async def test_a_step_done_twice_is_done_once(step: Step, tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        for earlier in ALL_STEPS[: ALL_STEPS.index(step)]:
            await earlier.do(made.ctx)
        await step.do(made.ctx)
        once = made.facts()
        await step.do(made.ctx)
        assert made.facts() == once


@pytest.mark.parametrize("step", ALL_STEPS, ids=lambda step: type(step).__name__)
async def test_a_step_is_undone_twice_and_also_when_it_was_never_done(
    step: Step, tmp_path: Path
) -> None:
    async with bench(tmp_path) as made:
        await step.undo(made.ctx)
        for each in ALL_STEPS:
            await each.do(made.ctx)
        for later in reversed(ALL_STEPS[ALL_STEPS.index(step) :]):
            await later.undo(made.ctx)
        once = made.facts()
        await step.undo(made.ctx)
        assert made.facts() == once


async def test_all_steps_undone_leave_nothing_but_what_outlives_tasks(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        for step in ALL_STEPS:
            await step.do(made.ctx)
        running = made.host.containers["c-t1"]
        assert (running.state, running.starts) == (ContainerState.RUNNING, 1)
        await driver.undo_all(made.ctx)
        left = made.facts()
    assert (left["containers"], left["networks"], left["mounted"]) == ({}, set(), {})
    assert (left["folders"], left["volumes"]) == ([False, False], {"data"})


async def test_a_step_that_cannot_be_undone_keeps_no_other_of_its_stage(tmp_path: Path) -> None:
    async with bench(tmp_path, FailingMounter("/mnt/d/a"), volumes=()) as made:
        for step in ALL_STEPS:
            await step.do(made.ctx)
        with pytest.raises(OSError, match="busy"):
            await driver.undo_all(made.ctx)
        left = made.facts()
    assert (left["containers"], left["networks"]) == ({}, set())
    assert left["folders"] == [True, True], "a volume may be mounted below"


async def test_the_container_gets_its_volumes_its_options_and_its_user(tmp_path: Path) -> None:
    wishes = ContainerOptions(cap_drop=("ALL",), user="anna")
    async with bench(tmp_path, container=wishes) as made:
        for step in ALL_STEPS[: -len(driver.STAGES[-1])]:
            await step.do(made.ctx)
        spec = made.host.containers["c-t1"].spec
        places = made.ctx.settings.task_mounts("t1")
    assert (spec.user, spec.options) == ("anna", wishes)
    assert [(m.kind, m.source, m.target, m.read_only) for m in spec.mounts] == [
        (VolumeKind.HOST, str(places / "0"), "/a", True),
        (VolumeKind.NAMED, "data", "/c", False),
        (VolumeKind.TMPFS, "", "/d", False),
        (VolumeKind.DEVICE, str(places / "4"), "/e", False),
    ]


@pytest.mark.parametrize(
    ("volume", "sentence"),
    [
        (VolumeMount(kind=VolumeKind.HOST, source="/mnt/d/none", target="/b"), "there is no"),
        (VolumeMount(kind=VolumeKind.DEVICE, source="/dev/vdb1", target="/b"), "may not be"),
        (VolumeMount(kind=VolumeKind.HOST, source="/etc", target="/b"), "may not be a volume"),
    ],
)
async def test_a_volume_that_cannot_be_had_is_named_under_its_own_reason(
    volume: VolumeMount, sentence: str, tmp_path: Path
) -> None:
    async with bench(tmp_path, volumes=(volume,)) as made:
        with pytest.raises(VolumeError, match=sentence) as caught:
            await Volumes().do(made.ctx)
    assert caught.value.reason == "volume_error"


async def test_a_disk_that_fails_is_a_volume_error_and_a_release_is_asked_for_again(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path, FailingMounter("/mnt/d/a")) as made:
        with pytest.raises(VolumeError, match="/mnt/d/a cannot be mounted"):
            await Volumes().do(made.ctx)
        with pytest.raises(OSError, match="busy"):
            await Volumes().undo(made.ctx)


async def test_a_full_disk_is_the_nodes_fault_whatever_is_to_be_mounted(tmp_path: Path) -> None:
    async with bench(tmp_path, FullMounter("/mnt/d/a")) as made:
        with pytest.raises(NodeFault, match="No space left on device"):
            await Volumes().do(made.ctx)


@pytest.mark.parametrize("fails", [False, True], ids=["free", "busy"])
async def test_volumes_are_let_go_before_the_end_is_told_and_never_hold_it_up(
    tmp_path: Path, fails: bool
) -> None:
    mounter = WatchedMounter("/mnt/d/a", "/dev/vdb", fails=fails)
    async with bench(tmp_path, mounter) as made:
        task = mounter.task = made.ctx.task
        life = asyncio.create_task(driver.drive(made.ctx))
        await eventually(lambda: task.info.status is TaskStatus.RUNNING)
        assert len(mounter.mounted) == 2
        made.host.containers["c-t1"].end(0)
        await asyncio.wait_for(life, LONG)
    assert task.info.status is TaskStatus.TERMINATED
    assert mounter.released_in == [TaskStatus.RUNNING]
    assert (mounter.mounted == {}) is not fails


async def test_a_volume_mounted_for_a_container_that_was_never_made_is_unmounted(
    tmp_path: Path,
) -> None:
    absent = VolumeMount(kind=VolumeKind.HOST, source="/mnt/d/none", target="/x")
    async with bench(tmp_path, volumes=(*VOLUMES, absent)) as made:
        await driver.drive(made.ctx)
        assert made.ctx.task.info.reason == "volume_error"
        assert made.mounter.mounted == {}


async def test_a_volume_that_a_crash_left_mounted_for_no_task_is_unmounted(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        await Volumes().do(made.ctx)
        folder = made.ctx.settings.mounts_folder
        for name in ("t1", "t0"):
            (folder / name).mkdir(parents=True)
        made.mounter.mounted[folder / "t0" / "0"] = "/mnt/d/a"
        threads, mounter = made.ctx.executor, made.ctx.mounter
        await release_strays(made.ctx.settings, threads, mounter, {"t1"})
        assert {place.parent.name for place in made.mounter.mounted} == {"t1"}


async def test_a_pinned_image_is_looked_for_and_pulled_by_its_digest(tmp_path: Path) -> None:
    async with bench(tmp_path, image="tool:1", image_digest="sha256:1", volumes=()) as made:
        made.host.local["tool:1"] = ImageInfo(id="moved")
        made.host.registry["tool@sha256:1"] = (ImageInfo(id="first", digest="sha256:1"), None)
        await ALL_STEPS[0].do(made.ctx)
        await Image().do(made.ctx)
        await Container().do(made.ctx)
        spec = made.host.containers["c-t1"].spec
    assert (spec.image, made.ctx.task.info.image_digest) == ("first", "sha256:1")


async def test_a_policy_of_never_pulls_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path, image="tool:1", pull_policy=PullPolicy.NEVER) as made:
        await ALL_STEPS[0].do(made.ctx)
        with pytest.raises(Exception, match="is not on this node and pull_policy is 'never'"):
            await Image().do(made.ctx)
        assert made.host.log == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A task's folder as most jobs leave it, with a link out of it."""
    tree = tmp_path / "task"
    (tree / "job" / "logs").mkdir(parents=True)
    (tree / "job" / "logs" / "0.log").write_bytes(b"x")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tree / "job" / "link").symlink_to(tmp_path / "kept")
    return tree


def test_a_folder_of_few_files_is_removed_without_a_program(tree: Path) -> None:
    assert folders._removed_quickly(tree)
    assert sorted(path.name for path in tree.parent.rglob("*")) == ["file", "kept"]
    assert folders._removed_quickly(tree), "a second removal finds nothing to do"


def _deep(tree: Path) -> None:
    tree.joinpath(*("d" for _ in range(folders._MAX_DEPTH + 1))).mkdir(parents=True)


def _wide(tree: Path) -> None:
    for number in range(folders._MAX_ENTRIES + 1):
        (tree / "job" / str(number)).touch()


def _linked(tree: Path) -> None:
    tree.rename(tree.with_name("elsewhere"))
    tree.symlink_to(tree.with_name("elsewhere"))


@pytest.mark.parametrize("make", [_deep, _wide, _linked])
def test_a_large_folder_is_left_to_rm(tree: Path, make: Callable[[Path], None]) -> None:
    make(tree)
    assert not folders._removed_quickly(tree)
    asyncio.run(folders._remove_tree(tree))
    left = sorted(path.name for path in tree.parent.iterdir() if path.name != "elsewhere")
    assert left == ["kept"]
