"""A visitor's session has some variables of its job, and never others."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.processes import scratch, session_environment
from runner.processes.variables import Paths
from tests.unit.runner.harness import a_job

PATHS = Paths(secrets_dir="/dev/shm/x/secrets")


def test_a_session_gets_what_the_job_is_told_and_what_the_user_set_but_no_secret() -> None:
    job = a_job(
        "true",
        env={"DATA": "/data", "FAIRLEAD_RUN_ID": "fake", "TOKEN": "default"},
        env_style=["torch"],
        secrets={"TOKEN": "hunter2", "OTHER": "swordfish"},
    )
    env = session_environment.for_session(job, "/w", PATHS)
    assert (env["DATA"], env["FAIRLEAD_WORKING_DIR"], env["NNODES"]) == ("/data", "/w", "1")
    assert env["FAIRLEAD_RUN_ID"] == job.job.run_id
    assert env["FAIRLEAD_SECRETS_DIR"] == "/dev/shm/x/secrets"
    assert {"TOKEN", "OTHER"} & env.keys() == set()
    assert not any(secret in "".join(env.values()) for secret in ("hunter2", "swordfish"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where it lies for the task whose folder is `tmp_path`."""
    path = session_environment.in_memory(tmp_path, "session-env.json")[0]
    yield path
    path.unlink(missing_ok=True)


def test_written_variables_are_read_and_replaced_and_never_on_a_disk(
    tmp_path: Path, place: Path
) -> None:
    assert session_environment.read(tmp_path) == {}
    for value in ("one", "two\nlines"):
        session_environment.write(tmp_path, {"A": value})
        assert session_environment.read(tmp_path) == {"A": value}
    assert (os.listdir(tmp_path), place.parent) == ([], Path("/dev/shm"))
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    session_environment.remove(tmp_path)
    assert (session_environment.read(tmp_path), place.exists()) == ({}, False)


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"{", b'{"A": 1}', b"\xff", b'{"A":"' + b"x" * (1 << 20) + b'"}']
)
def test_a_file_that_the_job_has_spoilt_tells_nothing(
    tmp_path: Path, place: Path, content: bytes
) -> None:
    place.write_bytes(content)
    assert session_environment.read(tmp_path) == {}


def test_a_link_or_a_pipe_in_its_place_is_not_followed_or_waited_for(
    tmp_path: Path, place: Path
) -> None:
    (tmp_path / "real").write_text('{"A": "b"}')
    place.symlink_to(tmp_path / "real")
    assert session_environment.read(tmp_path) == {}
    place.unlink()
    os.mkfifo(place)
    assert session_environment.read(tmp_path) == {}


def test_names_and_values_that_no_process_can_have_are_left_out(
    tmp_path: Path, place: Path
) -> None:
    session_environment.write(tmp_path, {"A": "b", "": "x", "C=D": "x", "E": "x\0y", "F\0": "x"})
    assert session_environment.read(tmp_path) == {"A": "b"}
    assert place.exists()


def test_where_nothing_is_in_memory_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "FOLDERS", (tmp_path,))
    with pytest.raises(OSError, match="no writable tmpfs"):
        session_environment.write(tmp_path, {"A": "b"})
    assert (session_environment.read(tmp_path), os.listdir(tmp_path)) == ({}, [])
