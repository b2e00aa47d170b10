"""Code that the leader of its submission lacks: it was on the disk of the leader before, and comes
again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from controller.service.runs.blobs import require_uploads
from fairlead import Client, Conflict
from fairlead.submission import SENT_AGAIN
from tests.unit.api.conftest import ADMIN_TOKEN, Controller
from tests.unit.cli.conftest import Fairlead, PlayedNode, Result
from tests.unit.cli.output import of

Use = Callable[[Client, dict[str, Any]], object]


class Disk:
    """A leader's disk; it is empty `losses` times when a submission looks at it."""

    def __init__(self, uploads: Path) -> None:
        self.losses = 0
        self.before: Callable[[], Awaitable[object]] | None = None
        """What happens before a loss."""
        self._uploads = uploads

    async def look(self) -> None:
        if self.losses:
            self.losses -= 1
            if self.before is not None:
                await self.before()
            shutil.rmtree(self._uploads)
            self._uploads.mkdir()


@pytest.fixture
def disk(controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(tmp_path / "blobs")

    async def looking(*given: Any) -> None:
        await made.look()
        await require_uploads(*given)

    monkeypatch.setattr("controller.service.runs.submissions.require_uploads", looking)
    return made


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    code = tmp_path / "code"
    code.write_text("1")
    return {"type": "task", "commands": ["true"], "files": [f"{code}:/code"]}


@pytest.mark.parametrize(
    "use",
    [
        lambda client, task: client.submit(task),
        lambda client, task: client.submit_many([task, task], names=["a", "b"]),
        lambda client, task: client.submit_together([task, task], names=["a", "b"]),
        lambda client, task: client.sweep(task, {"x": [1, 2]}),
    ],
    ids=["submit", "submit_many", "submit_together", "sweep"],
)
async def test_a_program_sends_it_again_and_submits_once_more(
    server: TestServer, disk: Disk, task: dict[str, Any], use: Use
) -> None:
    told: list[str] = []
    disk.losses = 1
    with Client(str(server.make_url("")), ADMIN_TOKEN, tell=told.append) as client:
        await asyncio.to_thread(use, client, task)
        runs = await asyncio.to_thread(client.runs)
    assert {run.status for run in runs} == {"submitted"}
    assert told == [SENT_AGAIN]


async def test_the_code_of_a_deployment_is_sent_again(
    server: TestServer, disk: Disk, task: dict[str, Any]
) -> None:
    told: list[str] = []
    service = {**task, "type": "service", "name": "web", "image": "busybox", "port": 80}
    with Client(str(server.make_url("")), ADMIN_TOKEN, tell=told.append) as client:
        await asyncio.to_thread(client.submit, service)
        disk.losses = 1
        changed = {**service, "commands": ["false"]}
        made = await asyncio.to_thread(client.deploy, "web", changed)
    assert [change.field for change in made.changes] == ["commands"]
    assert told == [SENT_AGAIN]


async def test_code_that_is_lost_twice_is_told(
    server: TestServer, disk: Disk, task: dict[str, Any]
) -> None:
    disk.losses = 2
    with Client(str(server.make_url("")), ADMIN_TOKEN, tell=lambda _: None) as client:
        with pytest.raises(Conflict, match="is missing or expired; apply the run again"):
            await asyncio.to_thread(client.submit, task)
        assert await asyncio.to_thread(client.runs) == []
    assert disk.losses == 0


@pytest.mark.parametrize(
    "words",
    [
        ("apply", "-f", "a.yaml", "-d"),
        ("apply", "-f", "a.yaml", "-f", "b.yaml", "-d"),
        ("sbatch", "--code", "code", "job.sh"),
    ],
    ids=["apply", "together", "sbatch"],
)
async def test_a_command_sends_it_again_and_submits_once_more(
    start: Fairlead, disk: Disk, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("1")
    for name in "ab":
        written = f"type: task\nname: {name}\ncommands: ['true']\nfiles: [code]\n"
        (tmp_path / f"{name}.yaml").write_text(written)
    (tmp_path / "job.sh").write_text("#!/bin/sh\ntrue\n")
    disk.losses = 1
    files = [str(tmp_path / word) if (tmp_path / word).exists() else word for word in words]
    result = await of(start, *files)
    assert (result.status, SENT_AGAIN in result.err) == (0, True), result.err


async def test_a_watched_task_is_submitted_once_more(
    start: Fairlead, disk: Disk, node: PlayedNode, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("1")
    file = tmp_path / "task.yaml"
    file.write_text("type: task\nname: train\ncommands: ['true']\nfiles: [train.py]\n")
    disk.losses = 1
    command = await start("apply", "-f", str(file), "--watch")
    await command.hears(SENT_AGAIN)
    await command.hears("submitted train")
    await node.runs("train")
    await node.ends("train", 0)
    await command.hears("train: done")
    command.interrupt()
    ended = await command.ended()
    assert ended.err.count("submitted train") == 1, ended.err


class Service:
    """A live service with code, and its file."""

    def __init__(self, start: Fairlead, controller: Controller, folder: Path) -> None:
        self._start = start
        self._controller = controller
        self.code, self._file = folder / "app.py", folder / "web.yaml"
        self.code.write_text("1")

    def write(self, command: str) -> None:
        self._file.write_text(
            "type: service\nname: web\nimage: busybox\nport: 80\nreplicas: 1\n"
            f"commands: ['{command}']\nfiles: [app.py]\n"
        )

    async def apply(self, *words: str) -> Result:
        return await of(self._start, "apply", "-f", str(self._file), "-d", *words)

    @property
    def deployments(self) -> list[object]:
        """The commands of each."""
        (state,) = self._controller.pipeline.runs.values()
        return [one.configuration["commands"] for one in state.run.deployments]


@pytest.fixture
async def service(start: Fairlead, controller: Controller, tmp_path: Path) -> Service:
    made = Service(start, controller, tmp_path)
    made.write("one")
    assert (await made.apply()).status == 0
    return made


async def test_a_change_of_a_service_is_asked_for_once_more(service: Service, disk: Disk) -> None:
    service.write("two")
    disk.losses = 1
    result = await service.apply()
    assert (result.status, SENT_AGAIN in result.err) == (0, True), result.err
    assert service.deployments == [["one"], ["two"]]
    assert result.err.count("commands: ") == 1, "the user has agreed"
    assert result.err.count("deployment 1 is being rolled out") == 1


async def test_a_change_of_a_service_whose_code_is_lost_twice_is_told(
    service: Service, disk: Disk
) -> None:
    service.write("two")
    disk.losses = 2
    result = await service.apply()
    assert result.status == 1
    assert "is missing or expired; apply the run again" in result.err
    assert (service.deployments, disk.losses) == ([["one"]], 0)


async def test_a_change_of_other_code_is_shown_again(service: Service, disk: Disk) -> None:
    async def edited() -> None:
        service.code.write_text("2")

    service.write("two")
    disk.losses, disk.before = 1, edited
    result = await service.apply()
    assert result.status == 0, result.err
    assert result.err.count("commands: ") == 2
    assert service.deployments == [["one"], ["two"]]


async def test_a_service_that_somebody_changed_meanwhile_is_shown_again(
    service: Service, disk: Disk
) -> None:
    """Here to what was wanted."""

    async def deployed() -> None:
        result = await service.apply()
        assert result.status == 0, result.err

    service.write("two")
    disk.losses, disk.before = 1, deployed
    result = await service.apply()
    assert result.status == 0, result.err
    assert "web is as the file says; nothing was changed" in result.err
    assert service.deployments == [["one"], ["two"]]
