"""What `outputs` names is in the output folder when the job has ended, however it ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fairlead.wire.runner import ExitRecord
from runner.client import RunnerClient
from runner.job.outputs import Copier, Order
from tests.unit.runner.harness import (
    a_job,
    a_runner,
    exit_of,
    followed,
    payload,
    run_job,
    until_output,
)


def kept(folder: Path) -> dict[str, bytes]:
    root = folder / "task/output"
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


async def ended(folder: Path, *commands: str, **fields: Any) -> tuple[ExitRecord, str]:
    (folder / "work").mkdir()
    async with a_runner(folder) as (_, client):
        job = a_job(*commands, working_dir=str(folder / "work"), **fields)
        record = await run_job(client, job)
        return record, payload(await followed(client)).decode()


WRITE = "mkdir -p ckpt/deep; echo 1 > ckpt/a.pt; echo 2 > ckpt/deep/b.pt; echo 3 > ckpt/c.log"


async def test_paths_and_patterns_are_kept_also_of_a_job_that_fails(tmp_path: Path) -> None:
    record, log = await ended(tmp_path, WRITE, "exit 3", outputs=["ckpt/**/*.pt", "ckpt/c.log"])
    assert (record.exit_code, log) == (3, "")
    assert kept(tmp_path) == {"ckpt/a.pt": b"1\n", "ckpt/deep/b.pt": b"2\n", "ckpt/c.log": b"3\n"}


async def test_a_folder_is_kept_whole_and_an_absolute_path_by_its_names(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x").write_text("x")
    record, log = await ended(tmp_path, WRITE, outputs=["ckpt", str(tmp_path / "other/*")])
    names = {"ckpt/a.pt", "ckpt/deep/b.pt", "ckpt/c.log", f"{tmp_path}/other/x".lstrip("/")}
    assert (record.reason, log, set(kept(tmp_path))) == ("done_by_runner", "", names)


async def test_a_killed_job_keeps_its_outputs_and_a_missing_path_is_one_line(
    tmp_path: Path,
) -> None:
    record, log = await ended(tmp_path, "echo 1 > a; kill -KILL $$", outputs=["a", "none/*.pt"])
    assert record.signal == "SIGKILL"
    assert log == "outputs: none/*.pt: there is no such file or folder\n"
    assert kept(tmp_path) == {"a": b"1\n"}
    assert record.log_end == len(log)


async def test_a_stopped_job_keeps_its_outputs(tmp_path: Path) -> None:
    async def stopped(client: RunnerClient) -> ExitRecord:
        job = a_job("echo 1 > a; echo up; sleep 60", working_dir=str(tmp_path), outputs=["a"])
        await client.submit(job)
        await client.run()
        await until_output(client, b"up\n")
        await client.stop(grace=3600)
        return await exit_of(client)

    async with a_runner(tmp_path) as (_, client):
        record = await stopped(client)
    assert record.signal == "SIGTERM"
    assert kept(tmp_path) == {"a": b"1\n"}


def copied(tmp_path: Path, *paths: str, limit: int | None = None) -> list[str]:
    target = tmp_path / "task/output"
    target.mkdir(parents=True, exist_ok=True)
    order = Order(working_dir=str(tmp_path / "w"), target=str(target), paths=paths, limit=limit)
    copier = Copier(order)
    copier.run()
    return copier.lines


def test_no_link_leads_out_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("secret")
    work = tmp_path / "w"
    (work / "real").mkdir(parents=True)
    (work / "real/a").write_text("1")
    (work / "latest").symlink_to("real")
    (work / "out").symlink_to(tmp_path / "secret")
    (work / "real/out").symlink_to(tmp_path / "secret")
    (work / "real/loop").symlink_to("..")
    lines = copied(tmp_path, "latest", "out", "out/key", "*/key")
    assert kept(tmp_path) == {"latest/a": b"1"}
    assert [line.split(": ", 1)[1] for line in lines] == [
        f"out: {work / 'out'} leads out of the working folder",
        f"out/key: {work / 'out/key'} leads out of the working folder",
        f"*/key: {work / 'out/key'} leads out of the working folder",
    ]


def test_a_file_that_several_paths_name_counts_once(tmp_path: Path) -> None:
    (tmp_path / "w/logs").mkdir(parents=True)
    (tmp_path / "w/logs/a").write_bytes(b"x" * 600)
    assert copied(tmp_path, "logs", "logs/*", "logs/a", limit=1000) == []
    assert set(kept(tmp_path)) == {"logs/a"}


def test_a_file_that_takes_the_place_of_another_is_told(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/a").write_text("new")
    copied(tmp_path, "a")
    (line,) = copied(tmp_path, "a")
    assert "w/a takes the place of a file of that name in the output folder" in line


def test_whole_files_up_to_the_limit_are_copied_and_pipes_never(tmp_path: Path) -> None:
    work = tmp_path / "w"
    work.mkdir()
    for name, size in (("a", 600), ("b", 600), ("c", 300)):
        (work / name).write_bytes(b"x" * size)
    os.mkfifo(work / "pipe")
    lines = copied(tmp_path, ".", limit=1000)
    assert set(kept(tmp_path)) == {"a", "c"}
    assert lines == ["outputs: 1 files (600 bytes) were left out: beyond the limit of outputs"]


async def test_a_name_of_many_bytes_is_kept(tmp_path: Path) -> None:
    name = "ä" * 120 + ".pt"
    record, log = await ended(tmp_path, f"echo 1 > {name}", outputs=[name])
    assert (record.exit_code, log, kept(tmp_path)) == (0, "", {name: b"1\n"})
