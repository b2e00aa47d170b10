"""A cut or a kill leaves these as they are: the container, the attempt, the log, the exit status.

The jobs count lines until they are told to stop, so that the log alone shows whether a byte was
lost, doubled or moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from common.files.task_folder import EXIT_RECORD_NAME
from tests.support.lab import RunLab
from tests.support.proxy import CuttableProxy
from tests.support.waiting import LONG, wait_until

pytestmark = pytest.mark.e2e

COUNTING = """
i=0
while [ ! -e /tmp/go ]; do echo line $i; i=$((i+1)); sleep 0.02; done
echo $i lines
exit 3
"""


def _is_whole(log: bytes) -> bool:
    lines = log.decode().splitlines()
    count = len(lines) - 1
    return lines == [*(f"line {number}" for number in range(count)), f"{count} lines"]


def _lines(lab: RunLab, name: str) -> int:
    return lab.log(name).count(b"\n")


def _lines_on_node(lab: RunLab, name: str) -> int:
    """The lines that its runner has stored, whether or not the controller has them."""
    attempt: str = lab.attempts(name)[-1]["id"]
    files = (lab.shim.data / "tasks" / attempt).rglob("*")
    return sum(_content(file).count(b"line ") for file in files if file.is_file())


def _content(file: Path) -> bytes:
    """A file may be gone before it is read: its daemon writes a new one in its place."""
    with suppress(FileNotFoundError):
        return file.read_bytes()
    return b""


@contextmanager
def _followed(lab: RunLab, name: str, **fields: Any) -> Iterator[Callable[[], tuple[int, bytes]]]:
    """`apply` in the background; what is given waits for its end: exit status and output."""
    file = lab.write(commands=[COUNTING], **fields)
    with lab.controller.spawn_cli("apply", "-f", file, "-n", name) as command:

        def ended() -> tuple[int, bytes]:
            output, _ = command.communicate(timeout=LONG)
            return command.returncode, output

        try:
            wait_until(lambda: _started(lab, name), what=f"{name} to write")
            yield ended
        finally:
            if command.poll() is None:
                command.kill()
                command.communicate()


def _started(lab: RunLab, name: str) -> bool:
    runs = lab.get("/v1/runs")["runs"]
    return any(run["name"] == name for run in runs) and _lines(lab, name) > 20


def _assert_went_on(lab: RunLab, name: str, container: str) -> None:
    """The same attempt, in the same container, has written more since."""
    seen = _lines(lab, name)
    wait_until(lambda: _lines(lab, name) > seen, what=f"{name} to go on")
    assert lab.container(name) == container
    assert len(lab.attempts(name)) == 1


def _assert_ended_well(lab: RunLab, name: str, ended: Callable[[], tuple[int, bytes]]) -> None:
    status, output = ended()
    assert status == 3
    assert _is_whole(output)
    assert lab.log(name) == output
    (attempt,) = lab.attempts(name)
    assert (attempt["exit_code"], attempt["status"]) == (3, "failed")


@pytest.mark.parametrize(("how", "tries"), [("stall", 0), ("cut", 3)])
def test_a_lost_connection_changes_nothing(
    lab_behind_proxy: tuple[RunLab, CuttableProxy], how: str, tries: int
) -> None:
    """It lasts until the job has written more; a cut, until some tries to connect have failed."""
    lab, network = lab_behind_proxy
    with _followed(lab, "far") as ended:
        container = lab.container("far")
        before = lab.dockerd.docker("inspect", "-f", "{{.State.StartedAt}}", container)
        getattr(network, how)()
        written = _lines_on_node(lab, "far")
        wait_until(lambda: _lines_on_node(lab, "far") > written + 200, what="the job to go on")
        wait_until(lambda: network.refused >= tries, what="tries to connect")
        network.restore()
        _assert_went_on(lab, "far", container)
        after = lab.dockerd.docker("inspect", "-f", "{{.State.StartedAt}}", container)
        assert before == after
        lab.let_go("far")
        _assert_ended_well(lab, "far", ended)


def test_a_run_that_ends_behind_a_cut_is_told_when_it_is_mended(
    lab_behind_proxy: tuple[RunLab, CuttableProxy],
) -> None:
    lab, network = lab_behind_proxy
    with _followed(lab, "lonely") as ended:
        network.cut()
        lab.let_go("lonely")
        wait_until(lambda: _has_exit_record(lab, "lonely"), what="the job to end")
        network.restore()
        _assert_ended_well(lab, "lonely", ended)


def _has_exit_record(lab: RunLab, name: str) -> bool:
    attempt: str = lab.attempts(name)[-1]["id"]
    return (lab.shim.data / "tasks" / attempt / "job" / EXIT_RECORD_NAME).exists()


def _is_running(lab: RunLab, container: str) -> bool:
    return container in lab.dockerd.docker("ps", "-q", "--no-trunc")


def test_a_run_goes_on_when_its_shim_is_killed(lab: RunLab) -> None:
    with _followed(lab, "shimless") as ended:
        container = lab.container("shimless")
        for _ in range(3):
            lab.shim.restart()
            _assert_went_on(lab, "shimless", container)
        lab.let_go("shimless")
        _assert_ended_well(lab, "shimless", ended)


def test_a_job_that_ends_while_its_shim_is_dead_ends_well(lab: RunLab) -> None:
    with _followed(lab, "orphan") as ended:
        lab.shim.kill9()
        lab.let_go("orphan")
        wait_until(lambda: _has_exit_record(lab, "orphan"), what="the job to end")
        lab.shim.start()
        _assert_ended_well(lab, "orphan", ended)


def test_a_run_goes_on_when_its_controller_is_killed(lab: RunLab) -> None:
    with _followed(lab, "headless") as ended:
        container = lab.container("headless")
        for _ in range(2):
            lab.controller.restart()
            _assert_went_on(lab, "headless", container)
        lab.let_go("headless")
        _assert_ended_well(lab, "headless", ended)


def test_a_run_goes_on_when_both_are_killed_at_once(lab: RunLab) -> None:
    with _followed(lab, "alone") as ended:
        container = lab.container("alone")
        lab.controller.kill9()
        lab.shim.kill9()
        lab.shim.start()
        lab.controller.start()
        _assert_went_on(lab, "alone", container)
        lab.let_go("alone")
        _assert_ended_well(lab, "alone", ended)


def test_a_container_that_ends_while_both_are_dead_ends_well(lab: RunLab) -> None:
    with _followed(lab, "last-words") as ended:
        container = lab.container("last-words")
        lab.controller.kill9()
        lab.shim.kill9()
        lab.dockerd.docker("exec", "-d", container, "touch", "/tmp/go")
        wait_until(lambda: not _is_running(lab, container), what="the container to end")
        lab.shim.start()
        lab.controller.start()
        _assert_ended_well(lab, "last-words", ended)


@pytest.mark.parametrize("victim", ["controller", "shim"])
def test_an_acknowledged_run_runs_once_whichever_daemon_dies_then(lab: RunLab, victim: str) -> None:
    name = f"promised-by-{victim}"
    lab.submit(name, commands=["echo once"])
    getattr(lab, victim).restart()
    assert lab.wait_for(name)["status"] == "done"
    assert lab.log(name) == b"once\n"
    assert len(lab.attempts(name)) == 1


def test_a_stop_that_was_acknowledged_outlives_the_controller(lab: RunLab) -> None:
    bye = "trap 'echo bye; exit 0' TERM"
    lab.start("stopped", commands=[f"{bye}; echo ready; while :; do sleep 0.05; done"])
    lab.wait_for_log("stopped", b"ready")
    lab.cli("stop", "stopped").succeeded()
    lab.controller.restart()
    run = lab.wait_for("stopped")
    assert (run["status"], run["termination_reason"]) == ("terminated", "stopped_by_user")
    assert b"bye\n" in lab.log("stopped")


def test_a_follower_of_a_controller_that_stops_politely_goes_on_too(lab: RunLab) -> None:
    with _followed(lab, "polite-end") as ended:
        assert lab.controller.stop() == 0
        lab.controller.start()
        lab.let_go("polite-end")
        _assert_ended_well(lab, "polite-end", ended)
