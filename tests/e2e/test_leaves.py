"""Jobs of a container that carries jobs, in real cgroups of their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runner.client import RunnerClient
from shim.node.cgroups import CgroupTree, KernelTree
from shim.tasks.steps.leaves import LeafGiver, Leaves
from tests.doubles.engines import PlainEngine
from tests.support.cgroup_contract import CgroupTreeContract
from tests.unit.runner.harness import a_runner, frames_of, payload
from tests.unit.runner.test_batch import all_over, carried, opened, text_of
from tests.unit.shim.test_steps import bench

DAEMON = "(setsid sh -c '(setsid sleep 600 > /dev/null 2>&1 &)' &)"
"""It is nobody's child that the runner knows, and in no session of the job."""


class TestKernel(CgroupTreeContract):
    @pytest.fixture
    def tree(self) -> CgroupTree:
        why = KernelTree().why_none(KernelTree().places(os.getpid()))
        if why is not None:
            pytest.fail(f"{why}: run it as root (./dev e2e)", pytrace=False)
        return KernelTree()


async def test_a_daemon_that_a_carried_job_leaves_is_found_by_its_cgroup(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client), _leaves_of(tmp_path):
        assert await _after_clean_jobs(client, tmp_path) == "a process was left"


async def test_a_daemon_that_the_container_s_own_job_leaves_is_found_by_its_cgroup(
    tmp_path: Path,
) -> None:
    async with a_runner(tmp_path) as (_, client), _leaves_of(tmp_path):
        assert not await opened(client, tmp_path, DAEMON), "a container with it is not used again"


@asynccontextmanager
async def _leaves_of(folder: Path) -> AsyncIterator[None]:
    """Have the runner there get leaves; none of them is left behind."""
    async with bench(folder, carries_jobs=True) as made:
        made.ctx.engine = PlainEngine()
        made.ctx.task.show(runner_socket=str(folder / "runner.sock"), container_id="c-t1")
        giver = await LeafGiver.connect(made.ctx)
        assert giver is not None, "the tests of this folder run as root"
        serving = asyncio.create_task(giver.serve())
        yield
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await Leaves().undo(made.ctx)
        assert not (made.ctx.settings.leaves_folder / "t1").exists(), "no leaf is left"


async def _after_clean_jobs(client: RunnerClient, folder: Path) -> str | None:
    """Run clean jobs, and one with a daemon; return what is dirty after that."""
    where = str(folder / "work")
    look = "grep -o 'fairlead-t1-[0-9]*$' /proc/self/cgroup | sort -u"
    assert await opened(client, folder, look)
    assert payload(frames_of((await client.logs(0)).frames)) == b"fairlead-t1-0\n"
    clean = await all_over(client, *(carried(name, look, working_dir=where) for name in "ab"))
    assert [text_of(job) for job in clean.jobs] == [b"fairlead-t1-1\n", b"fairlead-t1-2\n"]
    assert clean.dirty is None
    return (await all_over(client, carried("c", DAEMON, working_dir=where))).dirty
