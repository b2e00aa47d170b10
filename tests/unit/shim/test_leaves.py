"""The shim brings a runner its leaves, and leaves none behind, at whichever step it is killed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from common.processes.leaves import MAX_LEAVES
from runner.job.leaves import SuppliedLeaves
from runner.processes.leaf import Leaf
from shim.node.cgroups import Place, TaskLeaves
from shim.settings import Settings
from shim.tasks.steps import leaves
from shim.tasks.steps.base import StepContext
from shim.tasks.steps.leaves import LeafGiver, Leaves, remove_strays
from tests.doubles.cgroups import FolderTree, FullTree
from tests.doubles.engines import MemoryEngine, PlainEngine
from tests.support.waiting import eventually
from tests.unit.runner.harness import a_runner
from tests.unit.shim.test_steps import bench


@contextlib.asynccontextmanager
async def a_task(folder: Path, tree: FolderTree) -> AsyncIterator[StepContext]:
    """A task that carries jobs; its runner would listen below `folder`."""
    async with bench(folder, carries_jobs=True) as made:
        made.ctx.cgroups = tree
        made.ctx.engine = PlainEngine()
        made.ctx.task.show(runner_socket=str(folder / "runner.sock"), container_id="c-t1")
        yield made.ctx


@contextlib.asynccontextmanager
async def served(ctx: StepContext) -> AsyncIterator[None]:
    """A shim serves the runner; at the end it is gone, as by kill -9."""
    giver = await LeafGiver.connect(ctx)
    assert giver is not None
    serving = asyncio.create_task(giver.serve())
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def taken(supplied: SuppliedLeaves) -> Leaf:
    leaf = await supplied.take()
    assert leaf is not None
    return leaf


def noted(settings: Settings) -> list[str]:
    return [path.name for path in settings.leaves_folder.glob("*")]


async def test_a_runner_gets_leaves_and_they_go_with_its_task(tmp_path: Path) -> None:
    tree = FolderTree(tmp_path / "cgroups")
    async with a_runner(tmp_path) as (runner, _), a_task(tmp_path, tree) as ctx:
        async with served(ctx):
            assert tree.leaves() == set(), "none before it carries jobs"
            runner.leaves.keep_ready()
            one, two = await taken(runner.leaves), await taken(runner.leaves)
            assert (one.number, two.number) == (0, 1)
            assert {"fairlead-t1-0", "fairlead-t1-1"} <= tree.leaves()
            runner.leaves.ended(one)
            runner.leaves.ended(two)
        await Leaves().undo(ctx)
        await Leaves().undo(ctx)
        assert (tree.leaves(), noted(ctx.settings)) == (set(), [])


async def test_an_ended_leaf_is_removed_while_the_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.job.leaves._REFILL", 1000)
    tree = FolderTree(tmp_path / "cgroups")
    async with a_runner(tmp_path) as (runner, _), a_task(tmp_path, tree) as ctx, served(ctx):
        runner.leaves.keep_ready()
        runner.leaves.ended(await taken(runner.leaves))
        await eventually(lambda: "fairlead-t1-0" not in tree.leaves())
        assert "fairlead-t1-1" in tree.leaves()


async def test_the_next_shim_removes_all_leaves_but_the_one_with_a_job(tmp_path: Path) -> None:
    tree = FolderTree(tmp_path / "cgroups")
    async with a_runner(tmp_path) as (runner, _), a_task(tmp_path, tree) as ctx:
        async with served(ctx):
            runner.leaves.keep_ready()
            held = await taken(runner.leaves)
        async with served(ctx):
            fresh = await taken(runner.leaves)
            assert fresh.number == held.number + 1
            fresh.close()
            assert "fairlead-t1-0" in tree.leaves()
        held.close()


@pytest.mark.parametrize("step", ["make", "open_home", "remove_all"])
async def test_a_shim_that_is_killed_at_a_step_leaves_nothing_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The note is there before the first leaf, so its next life finds all of them."""
    tree = FolderTree(tmp_path / "cgroups")
    real = getattr(TaskLeaves, step)
    killed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def last(self: object, *given: object) -> None:
        found = real(self, *given)
        for fd in found[1] if step == "make" else found if step == "open_home" else ():
            os.close(fd)
        loop.call_soon_threadsafe(killed.set)
        raise OSError(5, "killed here")

    async with a_runner(tmp_path) as (runner, _), a_task(tmp_path, tree) as ctx:
        runner.leaves.keep_ready()
        with monkeypatch.context() as patched:
            patched.setattr(TaskLeaves, step, last)
            giver = await LeafGiver.connect(ctx)
            if giver is not None:
                await giver.serve()
            await killed.wait()
        remove_strays(ctx.settings.leaves_folder, tree, ["t1"])
        assert noted(ctx.settings) == ["t1"], "its task is known: its own end removes them"
        remove_strays(ctx.settings.leaves_folder, tree, [])
        assert (tree.leaves(), noted(ctx.settings)) == (set(), [])


async def test_a_leaf_whose_process_does_not_end_is_removed_by_a_later_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaves, "_END_SECONDS", 0.0)
    tree = FolderTree(tmp_path / "cgroups")
    async with a_runner(tmp_path) as (runner, _), a_task(tmp_path, tree) as ctx:
        async with served(ctx):
            runner.leaves.keep_ready()
            leaf = await taken(runner.leaves)
        stuck = tmp_path / "cgroups/v2/fairlead-t1-0/cgroup.procs"
        stuck.write_text("4711\n")
        await Leaves().undo(ctx)
        assert noted(ctx.settings) == ["t1"]
        stuck.write_text("")
        remove_strays(ctx.settings.leaves_folder, tree, [])
        assert (tree.leaves(), noted(ctx.settings)) == (set(), [])
        leaf.close()


@contextlib.asynccontextmanager
async def ordering(folder: Path, *lines: bytes) -> AsyncIterator[None]:
    """A hostile runner, which says these lines."""
    over = asyncio.Event()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(lines))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    async with await asyncio.start_unix_server(meet, folder / "runner.sock"):
        yield
        await over.wait()


async def test_a_runner_that_orders_without_end_is_left(tmp_path: Path) -> None:
    tree = FolderTree(tmp_path / "cgroups")
    order = b'{"want":32}\n'
    async with ordering(tmp_path, b"{}\n", *[order] * 9), a_task(tmp_path, tree) as ctx:
        giver = await LeafGiver.connect(ctx)
        assert giver is not None
        await giver.serve()
        assert len(tree.leaves()) == MAX_LEAVES


async def test_leaves_that_were_there_before_and_those_with_a_process_count(tmp_path: Path) -> None:
    tree = FolderTree(tmp_path / "cgroups")
    for number in range(3):
        tree.make(tmp_path / f"cgroups/v2/fairlead-t1-{number}")
    (tmp_path / "cgroups/v2/fairlead-t1-2/cgroup.procs").write_text("4711\n")
    lines = (b'{"holds":[0,1]}\n', b'{"want":32,"ended":[2]}\n')
    async with ordering(tmp_path, *lines), a_task(tmp_path, tree) as ctx:
        giver = await LeafGiver.connect(ctx)
        assert giver is not None
        await giver.serve()
        assert tree.leaves() == {f"fairlead-t1-{number}" for number in range(3)}


async def test_a_leaf_has_no_number_that_no_removal_finds(tmp_path: Path) -> None:
    tree = FolderTree(tmp_path / "cgroups")
    lines = (b'{"holds":[-9]}\n', b'{"want":1}\n')
    async with ordering(tmp_path, *lines), a_task(tmp_path, tree) as ctx:
        assert await LeafGiver.connect(ctx) is None
        assert tree.leaves() == set()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EPERM])
async def test_leaves_that_cannot_be_removed_now_stay_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(leaves, "_END_SECONDS", 0.0)
    tree = FolderTree(tmp_path / "cgroups")

    def refuse(folder: Path) -> bool:
        raise OSError(number, os.strerror(number), str(folder))

    async with a_runner(tmp_path) as (runner, _), a_task(tmp_path, tree) as ctx:
        async with served(ctx):
            runner.leaves.keep_ready()
            (await taken(runner.leaves)).close()
        with monkeypatch.context() as patched:
            patched.setattr(tree, "remove", refuse)
            await Leaves().undo(ctx)
        assert noted(ctx.settings) == ["t1"]
        remove_strays(ctx.settings.leaves_folder, tree, [])
        assert (tree.leaves(), noted(ctx.settings)) == (set(), [])


@pytest.mark.parametrize("step", ["make", "open_home"])
async def test_a_cancelled_giver_ends_after_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Nothing is made after its removal, and no descriptor stays open (each test looks for one)."""
    tree = FolderTree(tmp_path / "cgroups")
    real = getattr(TaskLeaves, step)
    begun, go, over = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def late(self: object, *given: object) -> object:
        loop.call_soon_threadsafe(begun.set)
        go.wait()
        made = real(self, *given)
        over.set()
        return made

    async def give() -> None:
        giver = await LeafGiver.connect(ctx)
        assert giver is not None
        await giver.serve()

    async with a_runner(tmp_path) as (runner, _), a_task(tmp_path, tree) as ctx:
        runner.leaves.keep_ready()
        monkeypatch.setattr(TaskLeaves, step, late)
        giving = asyncio.create_task(give())
        await begun.wait()
        giving.cancel()
        loop.call_soon(loop.call_soon, go.set)
        await asyncio.gather(giving, return_exceptions=True)
        was_over = over.is_set()
        go.set()
        assert was_over
        await Leaves().undo(ctx)
        assert (tree.leaves(), noted(ctx.settings)) == (set(), [])


@pytest.mark.parametrize(
    ("place", "is_given"),
    [("memory/c-t1", True), ("memory/c-t1/in", True), ("memory/c-t10", False), ("other", False)],
)
async def test_only_a_listener_in_its_container_gets_leaves(
    tmp_path: Path, place: str, is_given: bool
) -> None:
    tree = FolderTree(tmp_path / "cgroups" / place)
    tree.found = (Place(2, str(tree.root)),)
    tree.make(tree.root)
    async with ordering(tmp_path, b"{}\n"), a_task(tmp_path, tree) as ctx:
        ctx.engine = MemoryEngine()
        giver = await LeafGiver.connect(ctx)
        assert (giver is not None) == is_given
        if giver is not None:
            giver.close()


async def test_a_root_in_which_all_containers_are_gets_no_leaf(tmp_path: Path) -> None:
    """With hierarchies of both versions, Docker makes its cgroups in one of them only."""
    tree = FolderTree(tmp_path / "two")
    below = tmp_path / "one/memory/c-t1"
    tree.found = (tree.found[0], Place(1, str(below)))
    tree.make(below)
    async with (
        ordering(tmp_path, b"{}\n", b'{"want":32}\n', b'{"want":32}\n'),
        a_task(tmp_path, tree) as ctx,
    ):
        ctx.engine = MemoryEngine()
        giver = await LeafGiver.connect(ctx)
        assert giver is not None
        await giver.serve()
        assert "fairlead-t1-0" in tree.names(below)
        assert "fairlead-t1-0" not in tree.names(Path(tree.found[0].folder))


async def test_a_listener_elsewhere_than_the_task_s_process_gets_none(tmp_path: Path) -> None:
    class Elsewhere(PlainEngine):
        def first_process(self, container_id: str) -> int | None:
            return None

    tree = FolderTree(tmp_path / "cgroups")
    async with ordering(tmp_path, b"{}\n"), a_task(tmp_path, tree) as ctx:
        ctx.engine = Elsewhere()
        assert await LeafGiver.connect(ctx) is None


@pytest.mark.parametrize("kind", ["none", "full"])
async def test_a_node_that_can_make_none_says_so_to_the_runner(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "cgroups"
    tree = FolderTree(root, versions=()) if kind == "none" else FullTree(root)
    async with a_runner(tmp_path) as (runner, _), a_task(tmp_path, tree) as ctx:
        giver = await LeafGiver.connect(ctx)
        runner.leaves.keep_ready()
        if giver is not None:
            await giver.serve()
        assert await runner.leaves.take() is None


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 5000])
async def test_an_older_runner_or_a_stranger_gets_none(tmp_path: Path, answer: bytes) -> None:
    async def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    tree = FolderTree(tmp_path / "cgroups")
    server = await asyncio.start_unix_server(meet, tmp_path / "runner.sock")
    async with server, a_task(tmp_path, tree) as ctx:
        assert await LeafGiver.connect(ctx) is None
        assert tree.leaves() == set()


async def test_a_damaged_note_is_no_reason_to_end(tmp_path: Path) -> None:
    tree = FolderTree(tmp_path / "cgroups")
    async with a_task(tmp_path, tree) as ctx:
        ctx.settings.leaves_folder.mkdir(parents=True)
        (ctx.settings.leaves_folder / "t9").write_bytes(msgspec.json.encode(["nonsense"]))
        remove_strays(ctx.settings.leaves_folder, tree, [])
        assert noted(ctx.settings) == []
