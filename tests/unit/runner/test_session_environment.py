"""What a visitor's session is told of its job, and what it never is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner import session_environment
from runner.environment import Paths
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


def test_what_is_written_is_read_and_replaced(tmp_path: Path) -> None:
    assert session_environment.read(tmp_path) == {}
    for value in ("one", "two\nlines"):
        session_environment.write(tmp_path, {"A": value})
        assert session_environment.read(tmp_path) == {"A": value}
    assert os.listdir(tmp_path) == ["session-env.json"]


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"{", b'{"A": 1}', b"\xff", b'{"A":"' + b"x" * (1 << 20) + b'"}']
)
def test_a_file_that_the_job_has_spoilt_tells_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "session-env.json").write_bytes(content)
    assert session_environment.read(tmp_path) == {}


def test_a_link_or_a_pipe_in_its_place_is_not_followed_or_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "session-env.json"
    (tmp_path / "real").write_text('{"A": "b"}')
    path.symlink_to("real")
    assert session_environment.read(tmp_path) == {}
    path.unlink()
    os.mkfifo(path)
    assert session_environment.read(tmp_path) == {}


def test_names_and_values_that_no_process_can_have_are_left_out(tmp_path: Path) -> None:
    session_environment.write(tmp_path, {"A": "b", "": "x", "C=D": "x", "E": "x\0y", "F\0": "x"})
    assert session_environment.read(tmp_path) == {"A": "b"}
