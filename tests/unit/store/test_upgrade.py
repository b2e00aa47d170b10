"""A database of an earlier version, with live jobs in it, opens and goes on.

The rows are those that the first version wrote: its columns, and in `rest` only what it knew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from controller.lifecycle.model import Band, Fleet, NodeStatus, RunState
from controller.store import schema
from controller.store.base import Changes
from controller.store.sql import Database, SqlStore
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from fairlead.queries import EventQuery, RunQuery
from tests.unit.store.samples import change

ROWS: dict[str, dict[str, Any]] = {
    "installation": {"id": "inst", "epoch": 1, "created_at": 1.0},
    "leases": {"name": "controller", "holder": "process 7 on h", "token": 5, "expires_at": 31.0},
    "users": {"name": "admin", "role": "admin", "created_at": 1.0, "rest": {}},
    "tokens": {"id": "t1", "user": "admin", "digest": "d" * 64, "label": "x", "created_at": 1.0},
    "fleets": {"name": "default", "placement": None, "created_at": 1.0, "rest": {}},
    "nodes": {
        "id": "n1",
        "name": "gpu-1",
        "fleet": "default",
        "status": "connected",
        "draining": False,
        "message": None,
        "created_at": 2.0,
        "last_seen_at": 3.0,
        "rest": {
            "address": {"shim_socket": "/run/fairlead/shim.sock", "local_socket": True},
            "boot_id": "boot",
            "capacity": {"cpu": 8.0, "memory": 64, "engine": "docker"},
        },
    },
    "runs": {
        "id": "r1",
        "name": "wise-otter-1",
        "type": "task",
        "user": "admin",
        "status": "running",
        "reason": None,
        "message": None,
        "parent_id": None,
        "client_key": "key",
        "suspended": False,
        "occurrence": 1,
        "deployment": 0,
        "version": 4,
        "next_triggered_at": None,
        "submitted_at": 10.0,
        "finished_at": None,
        "policy": {"stop_duration": 300.0, "retry": {"on_events": ["interruption"]}},
        "configuration": {"type": "task", "commands": ["sleep 1000"]},
        "rest": {},
    },
    "jobs": {
        "id": "j1",
        "run_id": "r1",
        "group": "main",
        "replica": 0,
        "cookie": 0,
        "index": 0,
        "rank": None,
        "abandoned": False,
        "retry_at": None,
        "spec": {"image": "busybox", "commands": ["sleep 1000"]},
        "rest": {},
    },
    "attempts": {
        "id": "a1",
        "job_id": "j1",
        "run_id": "r1",
        "number": 0,
        "occurrence": 1,
        "status": "running",
        "reason": None,
        "message": None,
        "exit_code": None,
        "node_id": "n1",
        "allocation_id": "p1",
        "submitted_at": 10.0,
        "provisioned_at": 11.0,
        "pulling_at": 12.0,
        "running_at": 13.0,
        "terminating_at": None,
        "finished_at": None,
        "rest": {"container_started": True, "runner_socket": "/run/x.sock"},
    },
    "allocations": {
        "id": "p1",
        "run_id": "r1",
        "job_id": "j1",
        "node_id": "n1",
        "state": "held",
        "created_at": 11.0,
        "released_at": None,
        "rest": {"resources": {"cpu": 2.0}, "gpus": ["GPU-1"]},
    },
    "events": {
        "run_id": "r1",
        "job_id": None,
        "attempt_id": None,
        "kind": "run",
        "at": 10.0,
        "message": None,
        "rest": {"to_status": "submitted", "cause": "submitted"},
    },
}


@pytest.fixture
def first(make_database: Callable[[], Database]) -> Callable[[], Database]:
    """The database of a controller of the first version that was killed with a job running."""
    database = make_database()
    database.enter("the first version")
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    with database.writer().begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for table, row in ROWS.items():
            columns = ", ".join(f'"{name}"' for name in row)
            values = ", ".join(f":{name}" for name in row)
            plain = {
                name: json.dumps(value) if isinstance(value, dict) else value
                for name, value in row.items()
            }
            connection.execute(
                sa.text(f'INSERT INTO "{table}" ({columns}) VALUES ({values})'), plain
            )
    database.leave()
    return make_database


async def test_live_jobs_of_the_first_version_go_on(
    first: Callable[[], Database],
) -> None:
    store = SqlStore(first())
    boot = await store.open()
    snapshot = await store.load()
    (state,) = snapshot.runs
    assert await store.list_runs(RunQuery(all=True, band=Band.INTERACTIVE)) == [state]
    await _goes_on(store, state)
    await store.close()

    assert (boot.epoch, boot.token, boot.installation_id) == (1, 6, "inst")
    assert boot.restored_at is None
    (attempt,) = state.jobs[0].attempts
    assert (state.run.status, attempt.status) == (RunStatus.RUNNING, AttemptStatus.RUNNING)
    assert (attempt.task.runner_socket, attempt.node_id) == ("/run/x.sock", "n1")
    assert state.jobs[0].spec.commands == ("sleep 1000",)
    assert state.allocations[0].gpus == ("GPU-1",)
    (node,) = snapshot.nodes
    assert (node.status, node.cordoned, node.unfit) == (NodeStatus.CONNECTED, False, None)
    assert [user.bands for user in snapshot.users] == [()]
    assert [token.label for token in snapshot.tokens] == ["x"]
    assert [fleet.name for fleet in snapshot.fleets] == ["default"]


async def _goes_on(store: SqlStore, state: RunState) -> None:
    """It can be changed, beside what the first version did not know."""
    (place,) = state.allocations
    released = msgspec.structs.replace(place, state=AllocationState.RELEASED, placement="rack1")
    later = msgspec.structs.replace(
        state,
        run=msgspec.structs.replace(state.run, status=RunStatus.DONE, finished_at=99.0),
        allocations=(released,),
    )
    await store.commit(change(state, later))
    await store.commit(Changes(fleets={"f": Fleet(name="f", created_at=1.0)}))
    found = await store.find_submissions([("admin", "key")])
    assert found["admin", "key"] == later
    assert [stored.event.cause for stored in await store.events(EventQuery())] == ["submitted"]


def test_the_rows_are_all_that_the_first_version_had(first: Callable[[], Database]) -> None:
    database = first()
    database.enter("a test")
    with database.writer().begin() as connection:
        names = set(sa.inspect(connection).get_table_names())
    database.leave()
    assert names - {"alembic_version"} == set(ROWS)
