"""What the executor submits: the fields of the run, and what it refuses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import submitit
from aiohttp.test_utils import TestServer

from fairlead import Client, Task
from fairlead.integrations.submitit import FairleadExecutor
from tests.unit.api.conftest import ADMIN_TOKEN, controller, server
from tests.unit.cli.conftest import node

__all__ = ["controller", "node", "server"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The fields of each task that is submitted."""
    tasks: list[Any] = []
    of = Task.of

    def noted(fields: Any) -> Task:
        tasks.append(fields)
        return of(fields)

    monkeypatch.setattr(Task, "of", noted)
    return tasks


@pytest.fixture
def executor(
    server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> submitit.AutoExecutor:
    monkeypatch.setenv("FAIRLEAD_URL", str(server.make_url("")).rstrip("/"))
    monkeypatch.setenv("FAIRLEAD_TOKEN", ADMIN_TOKEN)
    return submitit.AutoExecutor(folder=tmp_path, cluster="fairlead")


async def test_parameters_become_the_fields_of_a_task(
    executor: submitit.AutoExecutor, sent: list[Any]
) -> None:
    executor.update_parameters(
        name="My run",
        timeout_min=30,
        nodes=2,
        tasks_per_node=4,
        cpus_per_task=2,
        gpus_per_node=4,
        mem_gb=16,
        fairlead_gpu="H100",
        fairlead_image="python:3.12",
        fairlead_setup=["pip install torch"],
        fairlead_task={"priority": 40},
    )
    job = await asyncio.to_thread(executor.submit, pow, 2, 3)
    (task,) = sent
    assert task["name"].startswith("my-run-")
    assert task["resources"] == {"cpu": 8, "memory": "16384MiB", "gpu": "H100:4"}
    assert (task["nodes"], task["image"], task["priority"]) == (2, "python:3.12", 40)
    assert (task["stop_signal"], task["stop_duration"]) == ("SIGUSR2", 90)
    assert task["commands"][0] == "pip install torch"
    assert task["commands"][1].endswith(
        "--tasks 4 --stage .fairlead-submitit --grace 90 --seconds 1800.0"
    )
    assert job.num_tasks == 8
    assert job.paths.submitted_pickle.exists()


async def test_a_list_is_a_sweep_of_one_run(
    executor: submitit.AutoExecutor, sent: list[Any]
) -> None:
    executor.update_parameters(fairlead_array_parallelism=2)
    jobs = await asyncio.to_thread(executor.map_array, pow, [1, 2, 3], [1, 2, 3])
    (task,) = sent
    assert task["sweep"] == {"matrix": {"array_task_id": "0..2"}, "max_parallel": 2}
    assert [job.job_id.partition("_")[2] for job in jobs] == ["0", "1", "2"]


async def test_a_job_whose_state_outlives_it_is_requeued_after_its_time(
    executor: submitit.AutoExecutor, sent: list[Any]
) -> None:
    executor.update_parameters(timeout_min=30, fairlead_state="/mnt/state")
    await asyncio.to_thread(executor.submit, pow, 2, 3)
    assert (sent[0]["max_duration"], sent[0]["on_time_limit"]) == (1800, "requeue")
    assert "--seconds" not in sent[0]["commands"][-1]


async def test_much_is_not_sent(executor: submitit.AutoExecutor, tmp_path: Path) -> None:
    small = FairleadExecutor(tmp_path, max_pickle_size_gb=0)
    with pytest.raises(RuntimeError, match="max_pickle_size_gb"):
        await asyncio.to_thread(small.submit, pow, 2, 3)


def test_an_unknown_parameter_is_refused_with_all_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"(?s)\['imagee'\].*- image \(default: None\)"):
        FairleadExecutor(tmp_path).update_parameters(imagee="x")


def test_the_client_loads_neither_submitit_nor_hydra() -> None:
    assert Client.__module__ == "fairlead.client"
    code = (
        "import sys, fairlead; fairlead.Client, fairlead.AsyncClient, fairlead.Task;"
        "import fairlead.cli.main;"
        "print(sorted({'submitit', 'hydra', 'cloudpickle'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
