"""Secrets are in memory and in the job's environment only; files, folders and keys lie ready."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from fairlead.wire.job import ClusterInfo, ClusterKey, SubmitRequest
from fairlead.wire.runner import StatusEvent
from runner.client import RunnerError
from runner.errors import CannotStart
from runner.job import cluster_ssh
from runner.processes.identity import current_identity
from runner.processes.scratch import GIVEN, Scratch, memory_mounts, usable_folders
from shim.engines import process
from tests.unit.runner.code.hostile import file, tar
from tests.unit.runner.harness import (
    DEADLINE,
    a_job,
    a_runner,
    exit_of,
    followed,
    payload,
    run_job,
)

CANARY = "canary-5e1f0b9d"


async def run_with_code(
    folder: Path, request: SubmitRequest, blobs: tuple[bytes, ...]
) -> tuple[str, str | None]:
    async with a_runner(folder) as (_, client):
        await client.submit(request)
        event: StatusEvent | None = None
        for blob in blobs:
            event = await client.put_code(hashlib.sha256(blob).hexdigest(), blob)
        assert event is not None
        assert event.state == "ready"
        await client.run()
        record = await exit_of(client)
        return payload(await followed(client)).decode(), record.message


def files_with_the_canary(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if CANARY.encode() in path.read_bytes()]


def digest(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


async def test_repositories_and_files_lie_in_their_places(tmp_path: Path) -> None:
    repo, files = tar(file("train.py", b"train\n")), tar(file("config.json", b"{}\n"))
    job = a_job(
        "cat train.py config.json",
        'test "$FAIRLEAD_REPO_DIR" = "$PWD" && echo same',
        working_dir=str(tmp_path / "w"),
        repos=[{"path": ".", "archive": digest(repo)}],
        files=[{"path": ".", "archive": digest(files)}],
    )
    assert await run_with_code(tmp_path, job, (repo, files)) == ("train\n{}\nsame\n", None)
    assert not (tmp_path / "task" / "code").exists()


async def test_stopping_while_code_is_fetched_ends_it_at_once(tmp_path: Path) -> None:
    came, enough = asyncio.Event(), asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await enough.wait()
        writer.close()

    silent = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/x"
    target = str(tmp_path / "w")
    async with a_runner(tmp_path) as (_, client), asyncio.timeout(DEADLINE):
        await client.submit(a_job("true", working_dir=target, repos=[{"path": ".", "url": url}]))
        await client.run()
        await came.wait()
        await client.stop(grace=1000)
        record = await exit_of(client)
    enough.set()
    silent.close()
    await silent.wait_closed()
    assert (record.reason, record.message) == ("executor_error", "stopped before it started")


async def test_a_refused_archive_ends_the_job_with_a_sentence(tmp_path: Path) -> None:
    evil = tar(file("../evil"))
    target = str(tmp_path / "w")
    job = a_job("echo never", working_dir=target, files=[{"path": ".", "archive": digest(evil)}])
    output, message = await run_with_code(tmp_path, job, (evil,))
    assert output == ""
    assert message is not None
    assert "leaves the archive" in message


async def test_a_secret_is_in_the_environment_and_in_a_file_in_memory(tmp_path: Path) -> None:
    look = (
        'test "$TOKEN" = "$(cat $FAIRLEAD_SECRETS_DIR/TOKEN)" && echo same',
        "stat -c %a $FAIRLEAD_SECRETS_DIR $FAIRLEAD_SECRETS_DIR/TOKEN",
        "stat -f -c %T $FAIRLEAD_SECRETS_DIR",
        "echo $FAIRLEAD_SECRETS_DIR",
    )
    async with a_runner(tmp_path) as (_, client):
        await run_job(client, a_job(*look, secrets={"TOKEN": CANARY}))
        *said, folder = payload(await followed(client)).decode().splitlines()
    assert said == ["same", "700", "600", "tmpfs"]
    assert os.path.basename(folder) == "secrets"
    assert os.path.basename(os.path.dirname(folder)) not in os.listdir("/dev/shm")


async def test_a_secret_touches_no_disk_no_log_and_no_argument(tmp_path: Path) -> None:
    commands = (
        "echo $TOKEN; printf %s $TOKEN | head -c 9; sleep 0.01; printf %s $TOKEN | tail -c +10",
        "echo $TOKEN >&2",
        "tr '\\0' ' ' < /proc/$$/cmdline",
        "tr '\\0' ' ' < /proc/$PPID/cmdline",
        "exit 3",
    )
    async with a_runner(tmp_path) as (_, client):
        record = await run_job(client, a_job(*commands, secrets={"TOKEN": CANARY}))
        output = payload(await followed(client))
    assert CANARY.encode() not in output
    assert output.count(b"***") == 3
    assert "***" in str(record.message)
    assert files_with_the_canary(tmp_path) == []


async def test_secrets_need_a_name_that_a_variable_can_have(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        with pytest.raises(RunnerError, match="cannot be a secret's name"):
            await client.submit(a_job("true", secrets={"../x": "y"}))


async def test_a_parameter_set_is_a_file_among_the_outputs(tmp_path: Path) -> None:
    job = a_job(
        'test "$FAIRLEAD_PARAMS" = "$FAIRLEAD_OUTPUT_DIR/params.json"',
        "echo set $FAIRLEAD_PARAM_SET > $FAIRLEAD_OUTPUT_DIR/r",
        parameters={"lr": 0.001, "name": "a b", "on": True},
        parameter_set=7,
    )
    async with a_runner(tmp_path) as (_, client):
        await run_job(client, job)
    assert json.loads((tmp_path / "task/output/params.json").read_text()) == {
        "lr": 0.001,
        "name": "a b",
        "on": True,
    }
    assert (tmp_path / "task/output/r").read_text() == "set 7\n"


async def test_the_output_folder_is_the_jobs_own_and_outlives_it(tmp_path: Path) -> None:
    async with a_runner(tmp_path) as (_, client):
        await run_job(client, a_job("echo result > $FAIRLEAD_OUTPUT_DIR/r"))
    assert (tmp_path / "task/output/r").read_text() == "result\n"


def test_only_mounts_in_memory_count() -> None:
    table = "proc /proc proc rw 0 0\nshm /dev/shm tmpfs rw 0 0\n/dev/sda1 /tmp ext4 rw 0 0\n"
    assert memory_mounts(table) == {"/dev/shm"}


def test_a_folder_in_memory_that_was_given_is_the_only_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert GIVEN == process.VARIABLE
    with tempfile.TemporaryDirectory(dir="/dev/shm") as given:
        monkeypatch.setenv(GIVEN, given)
        assert usable_folders() == (Path(given),)
    for wrong in (given, str(tmp_path), ""):
        monkeypatch.setenv(GIVEN, wrong)
        assert usable_folders()[0] == Path("/dev/shm")


def test_secrets_without_memory_to_keep_them_are_refused() -> None:
    with pytest.raises(CannotStart, match="no folder in memory for them"):
        Scratch("a1", None, ()).secret_file("s", "x")


# -- SSH between nodes ----------------------------------------------------------------------

CLUSTER = ClusterInfo(ips=("10.0.0.1", "10.0.0.2"), master_ip="10.0.0.1", rank=0, ssh_port=2222)
KEY = ClusterKey(private="-----BEGIN-----\nx\n-----END-----", public="ssh-ed25519 AAAA run")


def set_up(tmp_path: Path) -> tuple[Path, Scratch]:
    home, memory = tmp_path / "home", tmp_path / "memory"
    for folder in (home, memory):
        folder.mkdir(exist_ok=True)
    scratch = Scratch("a1", None, (memory,))
    user = msgspec.structs.replace(current_identity(), home=str(home))
    cluster_ssh.set_up(CLUSTER, KEY, scratch, user)
    return home, scratch


def effective(home: Path, host: str) -> dict[str, str]:
    """As ssh itself understands the configuration."""
    argv = ["ssh", "-G", "-F", str(home / ".ssh/config"), host]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def test_ssh_reaches_the_runs_nodes_with_the_runs_key(tmp_path: Path) -> None:
    home, scratch = set_up(tmp_path)
    node, other = effective(home, "10.0.0.2"), effective(home, "example.com")
    assert (node["port"], node["identityfile"]) == ("2222", str(scratch.folder / "cluster_key"))
    assert other["port"] == "22"
    assert "cluster_key" not in other["identityfile"]


def test_the_key_is_private_and_lets_the_other_nodes_in(tmp_path: Path) -> None:
    home, scratch = set_up(tmp_path)
    assert (scratch.folder / "cluster_key").stat().st_mode & 0o777 == 0o600
    assert (home / ".ssh").stat().st_mode & 0o777 == 0o700
    assert (home / ".ssh/authorized_keys").read_text() == "ssh-ed25519 AAAA run\n"


def test_the_users_own_ssh_configuration_stays(tmp_path: Path) -> None:
    folder = tmp_path / "home/.ssh"
    folder.mkdir(parents=True)
    (folder / "config").write_text("Host example.com\n    Port 99\n")
    (folder / "authorized_keys").write_text("ssh-rsa BBBB mine")
    home, _ = set_up(tmp_path)
    set_up(tmp_path)
    assert effective(home, "example.com")["port"] == "99"
    assert effective(home, "10.0.0.1")["port"] == "2222"
    keys = (folder / "authorized_keys").read_text().splitlines()
    assert keys == ["ssh-rsa BBBB mine", "ssh-ed25519 AAAA run"]


def test_a_configuration_in_an_old_encoding_stays_byte_for_byte(tmp_path: Path) -> None:
    config = tmp_path / "home/.ssh/config"
    config.parent.mkdir(parents=True)
    config.write_bytes(b"# Z\xfcrich\r\nHost example.com\n")
    home, scratch = set_up(tmp_path)
    assert config.read_bytes().endswith(b"\n# Z\xfcrich\r\nHost example.com\n")
    cluster_ssh.take_back(scratch, msgspec.structs.replace(current_identity(), home=str(home)))
    assert config.read_bytes() == b"# Z\xfcrich\r\nHost example.com\n"


def test_jobs_that_share_a_home_all_find_their_own_configuration(tmp_path: Path) -> None:
    """The ranks of a run whose home is on a volume, which begin and end at the same time."""
    home, memory = tmp_path / "home", tmp_path / "memory"
    for folder in (home, memory):
        folder.mkdir()
    user = msgspec.structs.replace(current_identity(), home=str(home))
    ranks = [Scratch(f"a{number}", None, (memory,)) for number in range(8)]
    with ThreadPoolExecutor(len(ranks)) as threads:
        list(threads.map(lambda rank: cluster_ssh.set_up(CLUSTER, KEY, rank, user), ranks))
        lines = (home / ".ssh/config").read_text().splitlines()
        assert sorted(lines) == [f"Include {rank.folder}/ssh_config" for rank in ranks]
        list(threads.map(lambda rank: cluster_ssh.take_back(rank, user), ranks[1:]))
    assert (home / ".ssh/config").read_text() == f"Include {ranks[0].folder}/ssh_config\n"
    assert (home / ".ssh/authorized_keys").read_text() == "ssh-ed25519 AAAA run\n"
    assert not [path for path in (home / ".ssh").iterdir() if ".config" in path.name]
