"""Lanes run every file once between them, and leave to each other what they cannot run. Those that
one pytest has forked are told as if it had run the tests itself."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.lanes import Queue
from tests.support.waiting import wait_until

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
from tests.support import forked_lanes, lanes

def pytest_addoption(parser):
    lanes.add_options(parser)
    forked_lanes.add_options(parser)

def pytest_configure(config):
    lanes.configure(config)
    forked_lanes.configure(config)
"""
HELD = """
import os
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def held():
    yield
    Path("given-back").write_text(str(os.getpid()))

def test_held(held):
    Path("held").write_text(f"{os.getpid()} {os.getppid()}")
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
    return played(project, "--lanes", "queue", "--fetching", "far", *options)


def played(project: Path, *options: str) -> tuple[int, str]:
    argv = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir", "."]
    argv += options
    # Those of other packages take half a second of the processor's time to load.
    env = {"PYTHONPATH": str(Path(__file__).parents[3]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
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


def test_forked_lanes_run_all_tests_and_give_back_what_these_held(project: Path) -> None:
    (project / "far" / "test_held.py").write_text(HELD)
    status, output = played(project, "--forked-lanes", "2")
    assert status == 0
    assert "7 passed" in output
    for name in ("test_a.py", "test_b.py", "far/test_c.py"):
        assert output.count(f"{name}::test_second PASSED") == 1
    lane, _ = (project / "held").read_text().split()
    assert (project / "given-back").read_text() == lane


def test_a_test_that_fails_in_a_forked_lane_is_told_with_the_files_before(project: Path) -> None:
    (project / "test_b.py").write_text("def test_third(): assert 1 == 2\n")
    status, output = played(project, "--forked-lanes", "1")
    assert status == 1
    assert output.count("test_b.py:1: AssertionError") == 1
    assert "1 failed, 4 passed" in output
    assert "far/test_c.py test_a.py test_b.py" in output


DIES = """
    # The child is forked, so it has the lane's pipe; it outlives the lane, in a group of its own.
    if not os.fork():
        os.setsid()
        Path("child").write_text(str(os.getpid()))
        signal.pause()
    while not (Path("child").exists() and Path("child").read_text()):
        pass
    signal.raise_signal"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_forked_lane_that_dies_fails_the_run_with_its_last_test(project: Path, name: str) -> None:
    (project / "far" / "test_d.py").write_text(f"import signal{HELD}{DIES}(signal.{name})\n")
    with open(project / "output", "w+") as output, waiting(project, stdout=output) as run:
        try:
            run.wait()
        finally:
            os.kill(int((project / "child").read_text()), signal.SIGKILL)
    assert run.returncode == 3
    said = (project / "output").read_text()
    assert f"a lane was killed by {name} in far/test_d.py::test_held" in said


WAITS = "\n    import time; time.sleep(1000)\n"


@contextmanager
def waiting(project: Path, lanes: int = 2, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A run, as soon as `test_held` waits in one of its lanes."""
    argv = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    argv += ["--forked-lanes", str(lanes)]
    env = {"PYTHONPATH": str(Path(__file__).parents[3]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    with subprocess.Popen(argv, cwd=project, env=env, text=True, **options) as run:
        try:
            wait_until(lambda: (project / "held").exists() and (project / "held").read_text())
            yield run
        finally:
            run.kill()


def test_an_interrupt_reaches_each_forked_lane_once(project: Path) -> None:
    (project / "far" / "test_held.py").write_text(HELD + WAITS)
    with waiting(project) as run:
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate()
    assert run.returncode == 2
    assert "KeyboardInterrupt" in output
    assert (project / "given-back").exists()


LEAVES = """
    import subprocess
    left = subprocess.Popen(["sleep", "1000"])
    Path("left").write_text(str(left.pid))
    import time; time.sleep(1000)
"""


def test_what_an_interrupted_test_leaves_ends_with_its_lane(project: Path) -> None:
    (project / "far" / "test_held.py").write_text(HELD + LEAVES)
    with waiting(project, 1) as run:
        wait_until(lambda: (project / "left").exists() and (project / "left").read_text())
        left = psutil.Process(int((project / "left").read_text()))
        run.send_signal(signal.SIGINT)
        run.communicate()
    wait_until(lambda: not left.is_running() or left.status() == psutil.STATUS_ZOMBIE)


def test_an_interrupt_of_one_forked_lane_ends_the_run(project: Path) -> None:
    (project / "far" / "test_held.py").write_text(HELD + WAITS)
    (project / "test_a.py").write_text("def test_too():" + WAITS)
    with waiting(project) as run:
        lane, _ = (project / "held").read_text().split()
        os.kill(int(lane), signal.SIGINT)
        output, _ = run.communicate()
    assert run.returncode == 3
    assert "a lane ended with 2 in far/test_held.py::test_held" in output
    assert (project / "given-back").read_text() == lane


DEAF = """
    import time
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        print("x" * 2**20)
    assert False

@pytest.mark.parametrize("number", range(10_000))
def test_more(number):
    import time; time.sleep(1)
"""


def test_a_forked_lane_that_swallows_its_interrupt_and_fills_its_pipe_ends(project: Path) -> None:
    (project / "far" / "test_held.py").write_text(HELD + DEAF)
    with waiting(project, 1) as run:
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate()
    assert run.returncode == 2
    assert "1 failed" in output
    assert (project / "given-back").exists()


STUCK = """
    import threading
    threading.Thread(target=threading.Event().wait).start()
    threading.Event().wait()
"""


def test_a_forked_lane_that_a_thread_keeps_is_killed_in_the_end(project: Path) -> None:
    (project / "conftest.py").write_text(f"{PLUGIN}\nforked_lanes._GRACE_SECONDS = 1.0\n")
    (project / "far" / "test_held.py").write_text(HELD + STUCK)
    with waiting(project, 1) as run:
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate()
    assert run.returncode == 2
    assert "a lane did not end and is killed in far/test_held.py::test_held" in output
    assert (project / "given-back").exists()


ASKS = """
    try:
        open("/dev/tty").read()
    except OSError as error:
        Path("asked").write_text(error.strerror)
    import time; time.sleep(1000)
"""


def test_a_key_in_a_terminal_interrupts_forked_lanes_and_none_reads_there(project: Path) -> None:
    (project / "far" / "test_held.py").write_text(HELD + ASKS)
    keyboard, screen = os.openpty()
    try:
        options = {"stdin": screen, "start_new_session": True}
        take = partial(fcntl.ioctl, screen, termios.TIOCSCTTY, 0)
        with waiting(project, preexec_fn=take, **options) as run:
            wait_until((project / "asked").exists)
            os.write(keyboard, b"\x03")
            output, _ = run.communicate()
    finally:
        os.close(keyboard)
        os.close(screen)
    assert run.returncode == 2
    assert "KeyboardInterrupt" in output
    assert (project / "asked").read_text() == os.strerror(errno.ENXIO)
    assert (project / "given-back").exists()


def test_the_lines_that_forked_lanes_run_are_counted(project: Path) -> None:
    (project / "counted.py").write_text("def one():\n    a = 1\ndef other():\n    b = 2\n")
    (project / "test_a.py").write_text("import counted\ndef test_one(): counted.one()\n")
    (project / "far" / "test_c.py").write_text("import counted\ndef test_c(): counted.other()\n")
    command = [sys.executable, "-m", "coverage"]
    pytest_of_two = ["run", "--parallel-mode", "-m", "pytest", "--forked-lanes", "2"]
    env = {"PYTHONPATH": str(Path(__file__).parents[3]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for arguments in (pytest_of_two, ["combine"], ["json", "--include", "counted.py"]):
        subprocess.run([*command, *arguments], cwd=project, env=env, check=True)
    found = json.loads((project / "coverage.json").read_text())["files"]["counted.py"]
    assert found["executed_lines"] == [1, 2, 3, 4]


def test_what_cannot_be_collected_forks_nothing(project: Path) -> None:
    (project / "test_b.py").write_text("import nothing_of_the_kind\n")
    status, output = played(project, "--forked-lanes", "2")
    assert status == 2
    assert "nothing_of_the_kind" in output
    assert "PASSED" not in output
