"""`python`: the venv that a job finds, from an interpreter of the image or of the node."""

from __future__ import annotations

import platform
from pathlib import Path

import msgspec
import pytest

from common.files.task_folder import PYTHONS_NAME, Pythons
from fairlead.wire.runner import ExitReason, ExitRecord
from runner.code.helper import Helpers
from runner.errors import CannotStart
from runner.job.python import make_venv
from runner.processes.spawn import Children
from tests.unit.runner.harness import a_job, a_runner, followed, payload, run_job

HERE = ".".join(platform.python_version_tuple()[:2])
ABSENT = "3.99"


async def outcome(folder: Path, version: str, *commands: str) -> tuple[ExitRecord, str]:
    async with a_runner(folder) as (_, client):
        record = await run_job(client, a_job(*commands, python=version))
        return record, payload(await followed(client)).decode()


async def test_the_job_has_a_venv_with_python_pip_and_uv_first_in_its_path(tmp_path: Path) -> None:
    commands = (
        "python -c 'import sys; print(sys.version_info[:2], sys.prefix != sys.base_prefix)'",
        'for one in python pip uv; do [ "$(command -v $one)" = "$VIRTUAL_ENV/bin/$one" ]; done',
        "pip list --quiet",
        "uv pip check --quiet",
    )
    record, output = await outcome(tmp_path, HERE, *commands)
    assert record.reason == ExitReason.DONE_BY_RUNNER, record.message
    major, minor = HERE.split(".")
    assert output.startswith(f"({major}, {minor}) True")


async def test_a_version_that_nothing_has_is_told_with_what_the_node_says(tmp_path: Path) -> None:
    task = tmp_path / "task"
    task.mkdir()
    offered = Pythons(problem="no route to the mirror")
    (task / PYTHONS_NAME).write_bytes(msgspec.json.encode(offered))
    record, output = await outcome(tmp_path, ABSENT, "echo ran")
    assert record.reason == ExitReason.EXECUTOR_ERROR
    assert output == ""
    assert record.message is not None
    assert "could not bring it (no route to the mirror)" in record.message
    assert "--python-mirror" in record.message


async def test_an_image_on_musl_without_that_python_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"python 3\.99: .* not built on glibc .*: use an image"):
        await make_venv(tmp_path, ABSENT, Helpers(Children(), {}, None), None, root=tmp_path)
