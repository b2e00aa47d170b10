"""What only the leader knows is asked of it, and left out when it does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.forwarding.reads import Reads
from controller.lifecycle.model import RunState
from controller.replica.answers import LEADER_AWAY, Answers
from controller.store.base import Changes
from controller.store.reading import StoreReader
from controller.store.sqlite import SqliteDatabase
from fairlead.model.statuses import AttemptStatus
from tests.unit.api.conftest import ADMIN_TOKEN
from tests.unit.forwarding.test_reads import TO_THE_LEADER, Bed, bearer, opened_bed
from tests.unit.replica.test_answers import CLOCK, NoFeed, make_answers
from tests.unit.store.samples import a_run


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    def answers(reader: StoreReader, database: SqliteDatabase) -> Answers:
        return make_answers(reader, database, NoFeed(), providers=("cloud",))

    async with opened_bed(tmp_path, lambda reader: Reads(reader, CLOCK), answers=answers) as made:
        yield made


async def asked(bed: Bed, path: str) -> tuple[int, str | None]:
    async with bed.follower.get(path, headers=bearer(ADMIN_TOKEN)) as answer:
        return answer.status, answer.headers.get(LEADER_AWAY)


async def test_why_nothing_is_rented_is_left_out_without_the_leader(bed: Bed) -> None:
    await bed.submit("live")
    assert await asked(bed, "/v1/runs/live/explain") == (TO_THE_LEADER, None)
    bed.forwarder.is_late = True
    assert await asked(bed, "/v1/runs/live/explain") == (200, "1")
    # What needs nothing of it says nothing of it.
    assert await asked(bed, "/v1/nodes") == (200, None)


def collecting() -> RunState:
    state = a_run()
    (job,) = state.jobs
    *before, last = job.attempts
    seen = replace(last.seen, has_outputs=True, outputs=None)
    last = replace(last, status=AttemptStatus.TERMINATING, seen=seen)
    return replace(state, jobs=(replace(job, attempts=(*before, last)),))


async def test_the_bytes_of_a_collection_are_left_out_without_the_leader(bed: Bed) -> None:
    state = collecting()
    await bed.controller.store.commit(Changes(runs={state.run.id: (None, state)}))
    path = f"/v1/runs/{state.run.id}"
    assert await asked(bed, path) == (TO_THE_LEADER, None)
    bed.forwarder.is_late = True
    assert await asked(bed, path) == (200, "1")


async def test_the_load_of_a_service_is_never_made_up(bed: Bed) -> None:
    await bed.submit("served", type="service", port=80)
    bed.forwarder.is_late = True
    assert await asked(bed, "/v1/services/served") == (TO_THE_LEADER, None)
    # Its document has its address, which follows from what is stored.
    assert await asked(bed, "/v1/runs/served") == (200, None)
