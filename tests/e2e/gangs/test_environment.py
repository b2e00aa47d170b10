"""The environment of a gang's jobs, seen from inside their containers on different machines, and
that they reach each other with it (docs/rules.md 5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.gangs.lab import WAITING, GangLab

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def told(whole_gang_lab: GangLab) -> Iterator[tuple[GangLab, list[Any]]]:
    """A gang of four, one of them reserved, and the attempts by cookie."""
    whole_gang_lab.submit(
        "told", nodes=4, gang={"size": 3}, commands=[WAITING], env_style=["torch", "ytsaurus"]
    )
    yield whole_gang_lab, whole_gang_lab.wait_for_incarnation("told", 1, range(4))
    whole_gang_lab.cli("stop", "told", "--abort").succeeded()
    whole_gang_lab.wait_for("told")


def test_each_job_is_told_its_place(told: tuple[GangLab, list[Any]]) -> None:
    lab, attempts = told
    envs = [lab.environment(attempt) for attempt in attempts]
    ips = [lab.machine(attempt["node"]).address for attempt in attempts]
    for rank, env in enumerate(envs[:3]):
        assert (env["FAIRLEAD_NODE_RANK"], env["FAIRLEAD_GANG_RANK"]) == (str(rank), str(rank))
        assert (env["NODE_RANK"], env["YT_GANG_RANK"]) == (str(rank), str(rank))
    for env in envs:
        assert env["FAIRLEAD_MASTER_NODE_IP"] == env["MASTER_ADDR"] == ips[0]
        assert (env["FAIRLEAD_NODES_NUM"], env["NNODES"]) == ("3", "3")
        assert (env["FAIRLEAD_GANG_SIZE"], env["FAIRLEAD_JOB_COUNT"]) == ("3", "4")
        assert env["FAIRLEAD_INCARNATION_NUMBER"] == "1"
    assert len({env["FAIRLEAD_INCARNATION"] for env in envs}) == 1
    assert {"FAIRLEAD_NODE_RANK", "FAIRLEAD_GANG_RANK", "YT_GANG_RANK"}.isdisjoint(envs[3])


def test_the_hostfile_names_every_rank(told: tuple[GangLab, list[Any]]) -> None:
    lab, attempts = told
    file = lab.environment(attempts[3])["FAIRLEAD_MPI_HOSTFILE"]
    lines = lab.inside(attempts[3], "cat", file).splitlines()
    assert lines == [f"{lab.machine(one['node']).address} slots=1" for one in attempts[:3]]


def test_each_job_is_on_a_machine_of_its_own(told: tuple[GangLab, list[Any]]) -> None:
    _, attempts = told
    assert len({attempt["node"] for attempt in attempts}) == 4


def test_the_master_is_reached_by_the_address_that_the_others_are_told(
    told: tuple[GangLab, list[Any]],
) -> None:
    """The rendezvous of torchrun and its like: rank 0 listens, the others connect and say who they
    are. The listener closes only after its caller did: a caller whose listener ends first (as one
    does that has nothing to say) ends too, and may not have spoken yet."""
    lab, attempts = told
    master, *others = attempts[:3]
    port = lab.environment(master)["MASTER_PORT"]
    note = "-e sh -c 'cat >> /tmp/met'"
    listen = f"(for n in 1 2; do nc -l -p {port} {note}; done) > /dev/null 2>&1"
    serve = f"{listen} & echo $! > /tmp/server"
    lab.inside(master, "sh", "-c", serve)
    for one in others:
        env = lab.environment(one)
        knock = f"echo rank {env['NODE_RANK']} | nc -w 5 {env['MASTER_ADDR']} {env['MASTER_PORT']}"
        lab.inside(one, "sh", "-c", f"until {knock}; do sleep 0.1; done")
    met = "while [ -e /proc/$(cat /tmp/server) ]; do sleep 0.05; done; cat /tmp/met"
    assert sorted(lab.inside(master, "sh", "-c", met).splitlines()) == ["rank 1", "rank 2"]
