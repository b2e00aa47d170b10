"""Ejection of replicas that only fail (docs/rules.md 8.15)."""

import pytest
from aiohttp import web

from common.proxy.outliers import MAX_FAILURES, Outliers
from tests.support.replicas import a_server, an_app, says
from tests.unit.proxy.bed import a_bed, replica


class Bed:
    def __init__(self, replicas: int) -> None:
        self.now = 0.0
        self.replicas = tuple(replica(port) for port in range(replicas))
        self.outliers = Outliers(lambda: self.now)

    def note(
        self, number: int, *, failed: bool = True, times: int = 1, seconds: float = 30.0
    ) -> bool:
        one = self.replicas[number].id
        noted = [
            self.outliers.note(one, self.replicas, seconds, failed=failed) for _ in range(times)
        ]
        return any(noted)

    @property
    def out(self) -> set[int]:
        out = self.outliers.out_of(self.replicas)
        return {number for number, one in enumerate(self.replicas) if one.id in out}


def test_failures_in_a_row_eject_for_some_time_and_the_next_one_again() -> None:
    bed = Bed(2)
    assert not bed.note(0, times=MAX_FAILURES - 1)
    assert not bed.note(0, failed=False)
    assert not bed.note(0, times=MAX_FAILURES - 1)
    assert bed.out == set()
    assert bed.note(0)
    assert bed.out == {0}
    bed.now = 30.0
    assert bed.out == set()
    assert bed.note(0)
    bed.now = 60.0
    bed.note(0, failed=False)
    assert not bed.note(0)
    assert bed.out == set()


@pytest.mark.parametrize(("replicas", "most"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_never_more_than_half_are_ejected(replicas: int, most: int) -> None:
    bed = Bed(replicas)
    for number in range(replicas):
        bed.note(number, times=2 * MAX_FAILURES)
    assert len(bed.out) == most


def test_where_others_are_gone_an_ejected_one_gets_requests_again() -> None:
    bed = Bed(2)
    bed.note(0, times=MAX_FAILURES)
    assert bed.out == {0}
    bed.replicas = bed.replicas[:1]
    assert bed.out == set()


async def broken(_: web.Request) -> web.Response:
    return web.Response(status=500)


async def fine(_: web.Request) -> web.Response:
    return web.Response(text="fine")


async def statuses(eject_for: float | None) -> list[int]:
    async with a_bed() as bed, an_app(broken) as bad, an_app(fine) as good:
        bed.serve(bad, good, eject_for=eject_for)
        found = []
        for _ in range(40):
            async with bed.client.get("/services/api/") as answer:
                found.append(answer.status)
    return found


async def test_a_replica_that_always_answers_500_gets_few_requests_unless_it_is_off() -> None:
    assert (await statuses(30.0)).count(500) == MAX_FAILURES
    assert (await statuses(None)).count(500) == 20


async def test_an_ejection_is_told_with_its_length() -> None:
    async with a_bed() as bed, an_app(broken) as bad, an_app(fine) as good:
        bed.serve(bad, good, eject_for=30.0)
        for _ in range(2 * MAX_FAILURES):
            async with bed.client.get("/services/api/") as answer:
                await answer.read()
    assert bed.traffic.out == {replica(bad).id: 30.0}


def test_how_long_a_replica_stays_out_is_known_until_it_is_back() -> None:
    bed = Bed(2)
    bed.note(0, times=MAX_FAILURES)
    bed.now = 10.0
    assert bed.outliers.seconds_left() == {bed.replicas[0].id: 20.0}
    bed.now = 30.0
    assert bed.outliers.seconds_left() == {}


async def test_a_replica_that_gives_no_answer_is_ejected_too() -> None:
    async with a_bed() as bed, a_server(says(b"")) as bad, an_app(fine) as good:
        bed.serve(bad, good, eject_for=30.0)
        found = []
        for _ in range(40):
            async with bed.client.post("/services/api/", data=b"x") as answer:
                found.append(answer.status)
    assert found.count(502) == MAX_FAILURES
