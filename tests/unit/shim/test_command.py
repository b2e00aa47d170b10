"""`fairlead-shim` as it is started: what it refuses, and how it ends."""

from __future__ import annotations

import errno
import grp
import http.client
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shim.engines.docker.dialect import DOCKER
from shim.errors import StartError
from shim.main import main
from shim.node.machine import parse_size
from shim.options import gid_of
from tests.support.waiting import LONG, wait_until

DEADLINE = LONG
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fs-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def shim(*options: str, data: str = "data", socket: str = "run/shim.sock") -> object:
        argv = [sys.executable, "-m", "shim.main", "--engine", "process", *options]
        paths = ["--data", str(folder / data), "--socket", str(folder / socket)]
        process = subprocess.Popen(
            [*argv, *paths], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        started.append(process)
        return process

    yield shim  # type: ignore[misc]
    for process in started:
        process.kill()
        process.communicate()


def ready(folder: Path) -> Path:
    socket = folder / "run" / "shim.sock"
    wait_until(socket.exists, timeout=DEADLINE)
    return socket


def refusal(process: subprocess.Popen[str]) -> str:
    errors = process.communicate(timeout=DEADLINE)[1]
    assert process.returncode == 1
    assert "Traceback" not in errors
    return errors.strip().splitlines()[-1]


def test_a_disk_that_is_full_is_told_with_the_folders_in_question(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shim.main.settings_of", full)
    with pytest.raises(SystemExit) as ended:
        main(["--engine", "process", "--data", f"{folder}/d", "--socket", f"{folder}/s"])
    assert ended.value.code == (
        f"fairlead-shim: cannot start: with --data {folder}/d and --socket {folder}/s: "
        "No space left on device"
    )


def test_sigterm_ends_the_shim_and_removes_its_socket(folder: Path, start: Start) -> None:
    process = start()
    socket = ready(folder)
    process.send_signal(signal.SIGTERM)
    assert (process.wait(DEADLINE), socket.exists()) == (0, False)


def test_only_owner_and_group_may_use_the_socket(folder: Path, start: Start) -> None:
    start()
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (ready(folder), folder / "data")]
    assert [oct(mode) for mode in modes] == ["0o660", "0o700"]


def test_a_socket_that_a_killed_shim_left_is_taken_over(folder: Path, start: Start) -> None:
    first = start()
    socket = ready(folder)
    first.kill()
    first.wait(DEADLINE)
    before = socket.stat().st_ino
    start()
    wait_until(lambda: socket.stat().st_ino != before, timeout=DEADLINE)
    assert socket.is_socket()


def test_a_second_shim_on_the_same_data_is_refused(folder: Path, start: Start) -> None:
    start()
    ready(folder)
    assert "another shim works on this folder" in refusal(start(socket="run/other.sock"))


def test_a_second_shim_on_the_same_socket_is_refused(folder: Path, start: Start) -> None:
    start()
    ready(folder)
    assert "another process listens there" in refusal(start(data="other"))


def test_a_file_at_the_sockets_place_is_refused(folder: Path, start: Start) -> None:
    (folder / "precious").write_text("data")
    assert "not a socket exists there" in refusal(start(socket="precious"))
    assert (folder / "precious").read_text() == "data"


def test_a_path_too_long_for_the_tasks_sockets_is_refused(start: Start) -> None:
    assert "choose a shorter folder" in refusal(start(socket="x" * 60 + "/shim.sock"))


def test_records_in_the_folder_that_belongs_to_the_sockets_are_refused(
    folder: Path, start: Start
) -> None:
    (folder / "run" / "shim.d").mkdir(parents=True)
    (folder / "run" / "shim.d" / "precious").write_text("data")
    assert "choose another folder" in refusal(start(data="run/shim.d"))
    assert (folder / "run" / "shim.d" / "precious").read_text() == "data"


@pytest.mark.parametrize(
    ("option", "value"),
    [("--memory", "lots"), ("--memory", "5"), ("--disk", "-1"), ("--cpus", "0")],
)
def test_a_wrong_capacity_is_refused_by_name(start: Start, option: str, value: str) -> None:
    assert refusal(start(f"{option}={value}")).startswith(f"fairlead-shim: {option}")


def test_a_group_that_was_asked_for_has_to_be_there(start: Start) -> None:
    refused = refusal(start("--group", "nosuch"))
    assert refused == "fairlead-shim: --group nosuch: there is no such group"


def test_a_missing_default_group_is_only_warned_of_with_its_effect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nobody(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(grp, "getgrnam", nobody)
    assert gid_of(None) == os.getegid()
    assert "cannot reach them" in caplog.text


@pytest.mark.parametrize("name", ["precious", "precious/data"])
def test_data_that_is_no_folder_is_refused_in_words(folder: Path, start: Start, name: str) -> None:
    (folder / "precious").write_text("data")
    refused = refusal(start(data=name))
    assert refused.startswith(f"fairlead-shim: --data {folder / name}: ")
    assert "is not a folder" in refused
    assert "Errno" not in refused


def test_an_engine_that_does_not_answer_is_named_with_what_to_do(folder: Path) -> None:
    paths = ["--data", str(folder / "data"), "--socket", str(folder / "run" / "shim.sock")]
    launcher = folder / "runtime/bin/fairlead-entrypoint"
    launcher.parent.mkdir(parents=True)
    launcher.touch(mode=0o755)
    paths += ["--runtime", str(folder / "runtime")]
    process = subprocess.Popen(
        [sys.executable, "-m", "shim.main", "--engine", "docker", *paths],
        env={**os.environ, "DOCKER_HOST": f"unix://{folder}/none.sock"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert refusal(process) == (
        f"fairlead-shim: the Docker engine at unix://{folder}/none.sock does not answer: "
        "No such file or directory; is Docker installed and running there? "
        "(DOCKER_HOST is its address; --engine process does without, and isolates nothing)"
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            "Error while fetching server API version: "
            "('Connection aborted.', PermissionError(13, 'Permission denied'))",
            "Permission denied; the shim needs root, or the group of this socket",
        ),
        (
            'Max retries exceeded with url: /version (Caused by NewConnectionError("'
            'Failed to establish a new connection: [Errno 111] Connection refused"))',
            "Connection refused; is Docker installed and running there?",
        ),
        ("Read timed out.", "Read timed out.; is Docker installed and running there?"),
    ],
)
def test_why_the_engine_does_not_answer_is_told_without_a_librarys_words(
    error: str, words: str
) -> None:
    told = str(DOCKER.unreachable(Exception(error)))
    assert told.startswith(
        f"the Docker engine at unix:///var/run/docker.sock does not answer: {words}"
    )


def test_an_engine_that_does_not_exist_is_refused_with_those_that_do(start: Start) -> None:
    errors = start("--engine", "dokcer").communicate(timeout=DEADLINE)[1]
    assert "argument --engine: invalid choice: 'dokcer' (choose from" in errors
    assert "EngineKind" not in errors


def test_a_folder_for_sockets_that_cannot_be_made_is_refused_by_name(
    folder: Path, start: Start
) -> None:
    (folder / "file").write_text("")
    socket = folder / "file" / "run" / "shim.sock"
    assert refusal(start(socket="file/run/shim.sock")) == (
        f"fairlead-shim: --socket {socket}: {socket.parent} cannot be made: Not a directory"
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("512MiB", 512 << 20), ("1.5GiB", 3 << 29), ("4096", 4096)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "GB", "0", "-1GB", "8 bananas"])
def test_a_string_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(StartError, match="--memory"):
        parse_size(text, "--memory")


def test_a_shim_as_it_is_started_answers_all_that_is_asked_without_a_task(
    start: Start, folder: Path
) -> None:
    """Modules that it leaves unloaded at its start are there when they are needed."""
    process = start()
    place = ready(folder)
    paths = ("health", "openapi.json", "node", "node/metrics", "allocations", "tasks")
    answers = [ask(place, path) for path in (*(f"/v1/{path}" for path in paths), "/metrics")]
    assert [status for status, _ in answers] == [200] * 7
    assert b"fairlead_node_cpu_cores" in answers[-1][1]
    assert process.poll() is None


def ask(path: Path, resource: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("shim", timeout=DEADLINE)
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.settimeout(DEADLINE)
        connection.sock.connect(str(path))
        connection.request("GET", resource)
        answer = connection.getresponse()
        return answer.status, answer.read()
