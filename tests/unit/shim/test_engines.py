"""The memory and the process engine keep the promises that Docker's has to keep."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import msgspec
import pytest

from shim.engines import procfs
from shim.engines.base import ContainerState, Engine
from shim.engines.process import PrivateMemory
from shim.gpus.amd.smi import AMD
from shim.gpus.base import GpuDelivery
from shim.gpus.nvidia.nvml import NVIDIA
from tests.doubles.engines import MemoryContainer, MemoryEngine, MemoryHost
from tests.support.engine_contract import DEADLINE, EngineContract, World, spec
from tests.support.waiting import eventually
from tests.unit.shim.process_world import ProcessWorld


class MemoryWorld:
    """Understands of a script what the contract needs: `exit N`, and what a trap does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._host = MemoryHost()
        self._host.on_start = self._play
        self.engine: Engine = MemoryEngine(self._host)

    async def again(self) -> Engine:
        return MemoryEngine(self._host)

    @staticmethod
    def _play(container: MemoryContainer) -> None:
        folder = Path(container.spec.job_folder)
        script = (folder / "script").read_text().splitlines()[-1]
        if trap := re.match(r"trap '(?:exit (\d+))?' TERM", script):
            container.stop_code = int(trap[1]) if trap[1] else None
        (folder / "ready").touch()
        if ended := re.match(r"exit (\d+)", script):
            container.end(int(ended[1]))


class TestMemoryEngine(EngineContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> World:
        return MemoryWorld(tmp_path)


class TestProcessEngine(EngineContract):
    @pytest.fixture
    def world(self, processes: ProcessWorld) -> World:
        return processes


async def test_a_process_started_just_before_the_crash_is_found_by_its_mark(
    processes: ProcessWorld,
) -> None:
    wanted = spec(processes, "t1", "ready; wait_forever")
    await processes.engine.create(wanted)
    state_file = processes.folder / "data" / "processes" / "t1" / "state.json"
    before = state_file.read_bytes()
    await processes.engine.start("t1")
    state_file.write_bytes(before)
    other = await processes.again()
    assert [found.state for found in await other.list()] == [ContainerState.RUNNING]


@pytest.mark.parametrize("environment", ["", "env -i"], ids=["its own", "none"])
async def test_a_descendant_that_left_the_session_dies_with_its_task(
    processes: ProcessWorld, environment: str
) -> None:
    command = f"{environment} /usr/bin/setsid /bin/sh -c 'echo $$ > child; exec /bin/sleep 60'"
    script = f"{command} & ready; wait_forever"
    await processes.engine.create(spec(processes, "t1", script))
    await processes.engine.start("t1")
    child = processes.folder / "t1" / "job" / "child"
    await eventually(lambda: child.exists() and child.read_text(), timeout=DEADLINE)
    pid = int(child.read_text())
    await processes.engine.kill("t1")
    await processes.engine.wait("t1")
    await eventually(lambda: _is_gone(pid), timeout=DEADLINE)
    assert _is_gone(pid)


async def test_a_task_does_not_inherit_what_was_set_for_the_shim(
    processes: ProcessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_TOKEN", "s3cret")
    await processes.engine.create(spec(processes, "t1", "env > environment; exit 0"))
    await processes.engine.start("t1")
    await processes.engine.wait("t1")
    text = await asyncio.to_thread((processes.folder / "t1" / "job" / "environment").read_text)
    assert "PATH=" in text
    assert "s3cret" not in text


KEEPS = 'echo s3cret > "$FAIRLEAD_MEMORY_FOLDER/key"; ready; wait_forever'


def memory_of(processes: ProcessWorld, task_id: str) -> Path:
    return Path(f"/dev/shm/fairlead-{processes.install_id}-{task_id}")


async def until_kept(processes: ProcessWorld) -> Path:
    await processes.engine.create(spec(processes, "t1", KEEPS))
    await processes.engine.start("t1")
    memory = memory_of(processes, "t1")
    await eventually((memory / "key").exists, timeout=DEADLINE)
    return memory


@pytest.mark.parametrize(
    ("delivery", "variable"), [(AMD, "ROCR_VISIBLE_DEVICES"), (NVIDIA, "CUDA_VISIBLE_DEVICES")]
)
async def test_a_process_sees_its_gpus_by_the_variable_of_their_vendor(
    processes: ProcessWorld, delivery: GpuDelivery, variable: str
) -> None:
    wanted = spec(processes, "t1", f'echo "${variable}" > seen; exit 0')
    wanted = msgspec.structs.replace(wanted, gpus=("GPU-a", "GPU-b"), gpu_delivery=delivery)
    await processes.engine.create(wanted)
    await processes.engine.start("t1")
    await asyncio.wait_for(processes.engine.wait("t1"), DEADLINE)
    assert (Path(wanted.job_folder) / "seen").read_text() == "GPU-a,GPU-b\n"


async def test_the_memory_of_a_killed_task_goes_with_it(processes: ProcessWorld) -> None:
    memory = await until_kept(processes)
    await processes.engine.kill("t1")
    await processes.engine.wait("t1")
    assert not await asyncio.to_thread(memory.exists)


async def test_the_memory_of_a_task_goes_when_its_shim_was_killed_too(
    processes: ProcessWorld,
) -> None:
    memory = await until_kept(processes)
    other = await processes.again()
    assert await asyncio.to_thread(memory.exists)
    await other.remove("t1")
    assert not await asyncio.to_thread(memory.exists)


async def test_memory_of_a_task_that_nobody_knows_is_given_back_at_the_next_start(
    processes: ProcessWorld,
) -> None:
    memory = await until_kept(processes)
    stray = memory_of(processes, "stray")
    await asyncio.to_thread(stray.mkdir)
    await processes.again()
    assert [path.exists() for path in (memory, stray)] == [True, False]


async def test_a_place_in_memory_that_somebody_took_is_not_used(tmp_path: Path) -> None:
    memory = PrivateMemory("install", tmp_path)
    (tmp_path / "fairlead-install-t1").symlink_to(tmp_path)
    (tmp_path / "fairlead-install-t2").touch()
    made = [memory.make(task_id) for task_id in ("t1", "t2", "t3")]
    assert made == [None, None, tmp_path / "fairlead-install-t3"]


async def test_the_end_that_nobody_saw_is_told_by_the_exit_record(
    processes: ProcessWorld,
) -> None:
    script = "ready; echo '{\"exit_code\":9}' > exit.json; wait_forever"
    await processes.engine.create(spec(processes, "t1", script))
    await processes.engine.start("t1")
    record = processes.folder / "t1" / "job" / "exit.json"
    await eventually(lambda: record.exists() and record.read_text(), timeout=DEADLINE)
    other = await processes.again()
    await other.kill("t1")
    assert (await other.wait("t1")).exit_code == 9


async def test_a_pid_that_was_reused_is_never_signalled() -> None:
    own = os.getpid()
    started = procfs.start_time(own)
    assert started is not None
    procfs.send_signal(own, started - 1, signal.SIGKILL)
    await procfs.wait_end(own, started - 1)
    assert procfs.start_time(own) == started


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
