"""Machines that no record knows are ended, or forgotten, through a follower as at the leader, by
admins alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from controller.api.app import make_runner
from controller.clock import SystemClock
from controller.clouds.base import CloudAway
from controller.forwarding.follower_links import FollowerLinks
from controller.forwarding.reads import Reads
from controller.service.machines.rented import RentedService
from tests.doubles.clouds import MemoryCloud
from tests.doubles.memory_store import MemoryDatabase
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.forwarding.passing import ALeader, Bed
from tests.unit.forwarding.test_reads import Bed as Running
from tests.unit.forwarding.test_reads import bearer, opened_bed
from tests.unit.machines.parts import offer
from tests.unit.machines.renting import Renting, quick, renting
from tests.unit.machines.test_ended_orphans import RESTORED_AT, planted, told

__all__ = ["quick"]
END = "/v1/machine-orphans/end"
FORGET = "/v1/machine-orphans/forget"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with opened_bed(tmp_path / "leader", lambda reader: Reads(reader, SystemClock())) as made:
        yield made


async def led(bed: Bed, running: Running, lab: Renting) -> None:
    """Have the follower pass requests on to a controller with this lab's provider."""
    service = running.controller.service
    service.machines.rented = RentedService(lab.pipeline, cast(Any, None), lab.clock, lab.manager)
    leader = ALeader(bed.tls)
    leader.links = FollowerLinks(bed.tls.leader)
    leader.runner = make_runner(
        service,
        shutdown_timeout=0.1,
        mounts=(leader.links.mount,),
        first=(leader.links.middleware,),
    )
    leader.links.serve_with(leader.runner)
    await bed.serve(leader)
    bed.lead_to(leader)


async def test_an_orphan_is_ended_through_a_follower_by_an_admin_alone(
    bed: Bed, running: Running
) -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    cloud.fails["terminate"] = [CloudAway("no answer")] * 1000
    async with renting(cloud, database=database, restored_at=RESTORED_AT) as lab:
        await led(bed, running, lab)
        ids = await planted(lab)
        asked = {"provider": "lab", "instance_ids": ids}

        async def answer(token: str | None, body: object = asked) -> tuple[int, dict[str, Any]]:
            headers = {} if token is None else bearer(token)
            async with bed.session.post(bed.url + END, json=body, headers=headers) as got:
                return got.status, await got.json()

        assert (await answer(None))[0] == 401
        assert (await answer(USER_TOKEN))[0] == 403
        assert (await answer(ADMIN_TOKEN, {**asked, "instance_ids": [*ids, "i-99"]}))[0] == 404
        assert [status for status, _ in told(database)] == ["kept"]
        assert "terminate" not in cloud.calls
        # The second time, as by a client whose answer was lost, it changes nothing.
        for _ in range(2):
            status, body = await answer(ADMIN_TOKEN)
            (one,) = body["orphans"]
            assert (status, one["instance_id"], one["is_to_end"]) == (200, ids[0], True)
        cloud.fails.clear()
        await lab.until(lambda: not cloud.instances)
        await lab.until(lambda: told(database)[-1][0] == "gone")
        assert [status for status, _ in told(database)] == ["kept", "ending", "gone"]
        assert (await answer(ADMIN_TOKEN))[0] == 404


async def test_an_orphan_is_forgotten_through_a_follower_by_an_admin_alone(
    bed: Bed, running: Running
) -> None:
    cloud, database = MemoryCloud(offer()), MemoryDatabase()
    cloud.uses = "ours"
    async with renting(cloud, database=database, restored_at=RESTORED_AT) as lab:
        await led(bed, running, lab)
        (orphan,) = await planted(lab)
        await lab.until(lambda: bool(lab.rentals.orphans))
        cloud.uses, cloud.instances = "theirs", {}
        await lab.until(lambda: lab.manager.calls["lab"].account == "theirs")
        asked = {"provider": "lab", "instance_id": orphan}

        async def answer(token: str | None) -> tuple[int, dict[str, Any]]:
            headers = {} if token is None else bearer(token)
            async with bed.session.post(bed.url + FORGET, json=asked, headers=headers) as got:
                return got.status, await got.json()

        assert (await answer(None))[0] == 401
        assert (await answer(USER_TOKEN))[0] == 403
        assert [status for status, _ in told(database)] == ["kept"]
        status, gone = await answer(ADMIN_TOKEN)
        assert (status, gone["instance_id"], gone["ends_at"]) == (200, orphan, None)
        assert "may still run in account ours" in gone["unlisted"]
        assert [status for status, _ in told(database)] == ["kept", "gone"]
        assert (await answer(ADMIN_TOKEN))[0] == 404
