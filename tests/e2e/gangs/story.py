"""The story of a gang of four, one of them reserved, as `inspect` tells it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.gangs.lab import WAITING, GangLab

COOKIES = range(4)


@contextmanager
def a_gang(lab: GangLab, name: str) -> Iterator[list[Any]]:
    """Its first attempts, by cookie. It is done in the end, and nothing of it is left."""
    lab.submit(name, nodes=4, gang={"size": 3}, commands=[WAITING])
    try:
        yield lab.wait_for_incarnation(name, 1, COOKIES)
        for cookie in COOKIES:
            if lab.rank(name, cookie) is not None:
                lab.end(lab.last(name, cookie), 0)
        assert lab.wait_for(name)["status"] == "done"
    finally:
        lab.cli("stop", name, "--abort")
        lab.wait_for(name)
    for machine in lab.machines:
        lab.wait_for_node(lambda node: node["cpu_allocated"] == 0, machine.name)


def ranks(lab: GangLab, name: str) -> dict[int, int | None]:
    return {job["cookie"]: job["rank"] for job in lab.inspect(name)["jobs"]}


def places(attempts: list[Any], *cookies: int) -> list[tuple[str, str]]:
    return [(attempts[cookie]["node"], attempts[cookie]["allocation_id"]) for cookie in cookies]


def ends(lab: GangLab, name: str, incarnation: int) -> dict[int, str]:
    """How the attempts of that incarnation ended, by cookie."""
    return {
        job["cookie"]: attempt["termination_reason"]
        for job in lab.inspect(name)["jobs"]
        for attempt in job["attempts"]
        if attempt["incarnation"]["number"] == incarnation
    }


def switches(lab: GangLab, name: str) -> list[tuple[str, str | None]]:
    return [(one["reason"], one["attempt_id"]) for one in lab.inspect(name)["switches"]]


def assert_the_reserved_job_took_over(
    lab: GangLab, name: str, first: list[Any], second: list[Any], lost: int
) -> None:
    """Survivors keep place and rank; the lost rank goes to the reserved survivor, and the job that
    it came from becomes the reserved one."""
    kept = [cookie for cookie in COOKIES if cookie != lost]
    assert places(second, *kept) == places(first, *kept)
    assert second[lost]["allocation_id"] != first[lost]["allocation_id"]
    expected: dict[int, int | None] = {0: 0, 1: 1, 2: 2, 3: lost}
    assert ranks(lab, name) == {**expected, lost: None}
