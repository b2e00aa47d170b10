"""Lanes run every file once between them, and leave to each other what they cannot run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lanes import Queue

FILES = ["a/test_1.py", "a/test_2.py", "b/test_3.py", "b/test_4.py"]


def test_files_of_a_folder_stay_with_the_lane_that_began_it(tmp_path: Path) -> None:
    one, other = Queue(tmp_path), Queue(tmp_path)
    assert one.take(FILES, FILES, None) == "a/test_1.py"
    assert other.take(FILES, FILES, None) == "b/test_3.py"
    assert other.take(FILES, FILES, "b/test_3.py") == "b/test_4.py"
    assert other.take(FILES, FILES, "b/test_4.py") == "a/test_2.py"
    assert one.take(FILES, FILES, "a/test_1.py") is None


def test_a_lane_takes_none_of_the_files_that_it_cannot_run(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    assert queue.take(FILES, ["b/test_4.py"], None) == "b/test_4.py"
    assert queue.take(FILES, ["b/test_4.py"], "b/test_4.py") is None


def test_lanes_that_found_different_files_do_not_begin(tmp_path: Path) -> None:
    Queue(tmp_path).take(FILES, FILES, None)
    with pytest.raises(pytest.UsageError, match="different files"):
        Queue(tmp_path).take(FILES[1:], FILES[1:], None)


PLUGIN = """\
from tests.support import lanes

def pytest_addoption(parser):
    lanes.add_options(parser)

def pytest_configure(config):
    lanes.configure(config)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "far").mkdir(parents=True)
    (folder / "queue").mkdir()
    (folder / "conftest.py").write_text(PLUGIN)
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name in ("test_a.py", "test_b.py", "far/test_c.py"):
        (folder / name).write_text("def test_first(): pass\ndef test_second(): pass\n")
    return folder


def lane(project: Path, *options: str) -> tuple[int, str]:
    argv = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir", "."]
    argv += ["--lanes", "queue", "--fetching", "far", *options]
    env = {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_what_a_lane_without_a_way_out_leaves_runs_in_the_next(project: Path) -> None:
    status, apart = lane(project, "--apart")
    assert status == 0
    assert "4 passed" in apart
    assert "test_c.py" not in apart
    status, rest = lane(project)
    assert status == 0
    assert "2 passed" in rest
    assert "far/test_c.py::test_second PASSED" in rest


def test_a_lane_that_may_fetch_begins_with_what_needs_it(project: Path) -> None:
    _, output = lane(project)
    assert "6 passed" in output
    assert output.index("test_c.py") < output.index("test_a.py")


def test_a_failed_lane_says_which_files_it_ran_before(project: Path) -> None:
    (project / "test_b.py").write_text("def test_third(): assert 1 == 2\n")
    status, output = lane(project)
    assert status == 1
    assert "assert 1 == 2" in output
    assert "far/test_c.py test_a.py test_b.py" in output


def test_a_file_that_cannot_be_collected_fails_the_lane(project: Path) -> None:
    (project / "test_b.py").write_text("import nothing_of_the_kind\n")
    status, output = lane(project)
    assert status != 0
    assert "nothing_of_the_kind" in output
