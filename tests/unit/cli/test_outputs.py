"""`fairlead outputs`: listed, brought here, and gone on with."""

from __future__ import annotations

from pathlib import Path

from tests.unit.api.conftest import Controller
from tests.unit.api.test_outputs import stored
from tests.unit.cli.conftest import Fairlead, PlayedNode


async def submitted(controller: Controller, start: Fairlead, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("type: task\nimage: busybox\ncommands: [echo]\n")
    assert (await (await start("apply", "-f", str(file), "-d", "-n", "hello")).ended()).status == 0
    await stored(controller, {"name": "hello"})


async def test_outputs_are_listed_and_pulled(
    controller: Controller, start: Fairlead, tmp_path: Path
) -> None:
    await submitted(controller, start, tmp_path)
    listed = await (await start("outputs", "hello")).ended()
    lines = listed.out.decode().splitlines()
    assert lines[1].split() == ["main/0", "0", "collected", "1", "5", "2"]
    assert lines[-1].split() == ["5", "deep/a.txt"]
    here = tmp_path / "here"
    pulled = await (await start("outputs", "hello", "--pull", str(here))).ended()
    assert (pulled.status, "2 entries (9 bytes) of job main/0 were left out" in pulled.err) == (
        0,
        True,
    )
    found = {path.name: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert found == {"a.txt": b"hello"}


async def test_a_pull_goes_on_with_what_an_earlier_one_brought(
    controller: Controller, start: Fairlead, tmp_path: Path
) -> None:
    await submitted(controller, start, tmp_path)
    (state,) = controller.pipeline.runs.values()
    attempt_id = state.jobs[0].attempts[0].id
    data = controller.outputs.archive(attempt_id).read_bytes()
    here = tmp_path / "here"
    here.mkdir()
    (here / f".fairlead-{attempt_id}.tar").write_bytes(data[:900])
    assert (await (await start("outputs", "hello", "--pull", str(here))).ended()).status == 0
    assert [path.name for path in here.iterdir()] == ["deep"]


async def test_a_run_without_outputs_says_so(
    controller: Controller, start: Fairlead, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("type: task\nimage: busybox\ncommands: [echo]\n")
    await (await start("apply", "-f", str(file), "-d", "-n", "hello")).ended()
    await PlayedNode(controller).runs("hello")
    pulled = await (await start("outputs", "hello", "--pull", str(tmp_path / "here"))).ended()
    assert (pulled.status, pulled.err) == (0, "fairlead: there are no outputs of run hello\n")
