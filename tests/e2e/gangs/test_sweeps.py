"""A sweep whose sets are two nodes each, on real machines and on the process engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.gangs.lab import GangLab
from tests.support.lab import ControllerLab
from tests.support.processes import ControllerProcess
from tests.support.testbed import ControllerFactory, ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

PATIENCE = 240.0
_COMMANDS = """
test "$FAIRLEAD_NODES_NUM" = 2 || exit 90
again=${SLURM_RESTART_COUNT:-0}
echo "seed $FAIRLEAD_PARAM_SEED rank $FAIRLEAD_NODE_RANK again $again"
case $FAIRLEAD_PARAM_SEED-$FAIRLEAD_NODE_RANK-$again in
  1-1-0 | 3-0-0) exit 5 ;;
  1-0-0 | 3-1-0) exec sleep 600 ;;
  4-*) until [ -e "$GO" ]; do sleep 0.05; done ;;
esac
"""
"""Of the sets 1 and 3, one rank fails at first while the other one works; set 4 waits."""


@dataclass
class Bed:
    """`let_go`: lets the set that waits end."""

    lab: ControllerLab
    go: str
    let_go: Callable[[], None]


@dataclass
class _ProcessLab(ControllerLab):
    controller: ControllerProcess
    folder: Path
    image: str = ""


@pytest.fixture(params=["docker", "process"])
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    if request.param == "docker":
        lab: GangLab = request.getfixturevalue("gang_lab")
        yield Bed(lab, "/tmp/end", lambda: _end_all(lab))
        lab.end_runs()
        return
    start_shim: ShimFactory = request.getfixturevalue("shim_process")
    start_controller: ControllerFactory = request.getfixturevalue("controller_process")
    folder: Path = request.getfixturevalue("tmp_path")
    of_processes = _ProcessLab(start_controller(), folder)
    for number in range(5):
        shim = start_shim("process", "--cpus", "1", "--memory", "1GiB")
        of_processes.cli("node", "add", f"n{number}", "--local", shim.socket).succeeded()
        of_processes.wait_for_node(lambda node: node["status"] == "connected", f"n{number}")
    go = folder / "go"
    yield Bed(of_processes, str(go), go.touch)
    of_processes.end_runs()


def _end_all(lab: GangLab) -> None:
    for cookie in (8, 9):
        lab.end(lab.last("gangs", cookie), 0)


def test_sets_of_two_nodes_fail_and_come_back_as_a_whole(bed: Bed) -> None:
    lab = bed.lab
    sweep = {"matrix": {"seed": "0..4"}, "max_parallel": 2}
    lab.submit(
        "gangs",
        nodes=2,
        sweep=sweep,
        commands=[_COMMANDS],
        env={"GO": bed.go},
        env_style=["slurm"],
        resources={"cpu": 0.5, "memory": "64MB"},
    )
    lab.wait_for("gangs", "running")
    wait_until(lambda: _counts(lab) == (2, 2, 1), PATIENCE, "all sets but the waiting one to end")
    both = {"sibling_failed", "container_exited_with_error"}
    assert _ends(lab) == {1: both, 3: both}
    failed = lab.cli("logs", "gangs", "--failed").succeeded()
    seeds = {line.split("seed ")[1][0] for line in failed.output.splitlines() if "seed " in line}
    assert seeds == {"1", "3"}
    retried = lab.cli("retry", "gangs", "--failed").succeeded()
    assert retried.output.startswith("gangs: running: ")
    wait_until(lambda: _counts(lab) == (4, 0, 1), PATIENCE, "the retried sets to be done")
    bed.let_go()
    run = lab.wait_for("gangs", timeout=PATIENCE)
    assert (run["status"], run["sweep"]["done"]) == ("done", 5)
    _assert_whole(run)


def test_enough_failed_sets_of_two_nodes_end_the_run(bed: Bed) -> None:
    sweep = {"matrix": {"seed": "0..9"}, "max_parallel": 1, "stop_after_failures": "20%"}
    commands = ['if [ "$FAIRLEAD_NODE_RANK" = 1 ]; then exit 3; fi', "exec sleep 600"]
    small = {"cpu": 0.5, "memory": "64MB"}
    bed.lab.submit("failing", nodes=2, sweep=sweep, commands=commands, resources=small)
    run = bed.lab.wait_for("failing", timeout=PATIENCE)
    assert (run["status"], run["termination_reason"]) == ("failed", "job_failed")
    counts = {name: run["sweep"][name] for name in ("done", "failed", "stopped")}
    assert counts == {"done": 0, "failed": 2, "stopped": 8}


def test_containers_of_several_nodes_are_not_used_again(gang_lab: GangLab) -> None:
    sweep = {"matrix": {"seed": "0..1"}, "reuse_container": True}
    refused = gang_lab.apply("reused", nodes=2, sweep=sweep, commands=["true"])
    assert refused.status != 0
    assert "sweep.reuse_container" in refused.errors
    assert "nodes" in refused.errors


def _counts(lab: ControllerLab) -> tuple[int, int, int]:
    sweep = lab.inspect("gangs")["sweep"]
    return sweep["done"], sweep["failed"], sweep["active"]


def _ends(lab: ControllerLab) -> dict[int, set[str]]:
    """How the ranks of the sets ended that failed."""
    found: dict[int, set[str]] = {}
    for job in lab.inspect("gangs")["jobs"]:
        reason = job["attempts"][0]["termination_reason"]
        if reason not in (None, "done_by_runner"):
            found.setdefault(job["replica"], set()).add(reason)
    return found


def _assert_whole(run: Any) -> None:
    """The ranks of each try were on two nodes, and never more than two sets were active."""
    lives: dict[tuple[int, int], list[Any]] = {}
    for job in run["jobs"]:
        for number, attempt in enumerate(job["attempts"]):
            lives.setdefault((job["replica"], number), []).append(attempt)
    assert {len({one["node"] for one in both}) for both in lives.values()} == {2}
    assert len(lives) == 7, "five sets, of which two came back"
    begins = [(min(one["submitted_at"] for one in both), 1) for both in lives.values()]
    ends = [(max(one["finished_at"] for one in both), -1) for both in lives.values()]
    active = 0
    for _, change in sorted([*begins, *ends]):
        active += change
        assert active <= 2
