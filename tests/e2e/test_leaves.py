"""Jobs of a container that carries jobs, in real cgroups of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.processes import reaper
from fairlead import Client, Run
from runner.client import RunnerClient
from shim.node.cgroups import CgroupTree, KernelTree
from shim.tasks.steps.leaves import LeafGiver, Leaves
from tests.doubles.engines import PlainEngine
from tests.support.cgroup_contract import CgroupTreeContract
from tests.support.daemons import processes_of
from tests.support.processes import ShimProcess
from tests.support.testbed import ControllerFactory, ShimFactory
from tests.support.waiting import wait_until
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


def _ends_its_jobs(shim: ShimProcess, run: Run) -> None:
    wait_until(lambda: _done(run) >= 150, what="most jobs to end")


def _is_stopped(shim: ShimProcess, run: Run) -> None:
    run.stop()


def _loses_its_shim(shim: ShimProcess, run: Run) -> None:
    shim.restart()


def _ends_without_its_shim(shim: ShimProcess, run: Run) -> None:
    """Its runners are killed while nobody is there to see it."""
    shim.kill9()
    for pid, command in processes_of(f"{shim.data}/").items():
        if reaper.__file__ in command:
            os.kill(pid, signal.SIGKILL)
    shim.start()


@pytest.mark.e2e
@pytest.mark.parametrize(
    "happens", [_ends_its_jobs, _is_stopped, _loses_its_shim, _ends_without_its_shim]
)
def test_no_leaf_outlives_its_run_and_another_shim_s_stay(
    shim_process: ShimFactory,
    controller_process: ControllerFactory,
    happens: Callable[[ShimProcess, Run], None],
) -> None:
    """The other shim of this host has a life of its own, and starts again in between."""
    shim, other = shim_process("process"), shim_process("process")
    controller = controller_process()
    controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
    task = {
        "type": "task",
        "commands": ["true"],
        "resources": {"cpu": 0.1, "memory": "64MB"},
        "ssh": False,
    }
    with Client(controller.url, controller.token) as client:
        run = client.sweep(
            task, {"n": list(range(200))}, max_parallel=2, reuse_container=True, name="tiny"
        )
        wait_until(lambda: _done(run) >= 20, what="jobs to end in used containers")
        assert _leaves_of_tasks(shim), "its jobs have leaves"
        other.restart()
        assert _leaves_of_tasks(shim), "no shim takes another one's"
        happens(shim, run)
        run.wait(timeout=120, check=False)
        wait_until(lambda: not _notes(shim), what="the notes of its tasks to go")
        jobs = run.refresh().state.jobs
        tasks = [attempt.id for job in jobs for attempt in job.attempts]
    assert len(tasks) >= 20
    assert not any(_leaves_of_task(task_id) for task_id in tasks)


def _done(run: Run) -> int:
    sweep = run.refresh().state.sweep
    assert sweep is not None
    return sweep.done


def _notes(shim: ShimProcess) -> list[str]:
    return [path.name for path in (shim.data / "leaves").glob("*")]


def _leaves_of_tasks(shim: ShimProcess) -> list[str]:
    return [name for task_id in _notes(shim) for name in _leaves_of_task(task_id)]


def _leaves_of_task(task_id: str) -> list[str]:
    tree = KernelTree()
    return [
        name
        for place in tree.places(os.getpid())
        for name in tree.names(Path(place.folder))
        if name.startswith(f"fairlead-{task_id}-")
    ]
