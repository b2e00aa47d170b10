"""Where a user's ssh finds a job, and what is said when there is no way in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient

from common.refusals import Conflict
from controller.api.jobs.jobs import ssh_target
from controller.lifecycle.model import JobSpec, Node, NodeAddress, RunState
from controller.lifecycle.runs.first_state import PlannedJob, new_run
from fairlead.model.statuses import AttemptStatus
from tests.support.attempts import attempt_with
from tests.unit.api.conftest import HOST_KEY

CONFIGURATION = {"type": "task", "commands": ["true"]}
NODE = Node(
    id="n1",
    name="node",
    address=NodeAddress(shim_socket="/s", host="10.0.0.5", port=2222, host_key=HOST_KEY),
    created_at=0.0,
)


def a_run(spec: JobSpec | None = None, **changes: Any) -> RunState:
    ids = iter("abcdefg")
    planned = PlannedJob(spec=spec or JobSpec(image="i", ssh_keys=(HOST_KEY,)))
    state = new_run(name="train", user="u", jobs=[planned], now=0.0, new_id=lambda: next(ids))
    (job,) = state.jobs
    running: dict[str, Any] = {
        "status": AttemptStatus.RUNNING,
        "node_id": "n1",
        "ports": {"ssh": 40022},
        "ssh_host_key": HOST_KEY,
    }
    attempt = attempt_with(job.attempts[0], **{**running, **changes})
    return msgspec.structs.replace(state, jobs=(msgspec.structs.replace(job, attempts=(attempt,)),))


def test_a_running_job_is_found_through_its_node() -> None:
    found = ssh_target(a_run(), None, {"n1": NODE})
    assert (found.port, found.host_key) == (40022, HOST_KEY)
    assert (found.node_host, found.node_port, found.node_host_key) == ("10.0.0.5", 2222, HOST_KEY)
    assert found.jump_user == "fairlead-jump"


def test_on_the_controllers_own_machine_there_is_nobody_to_come_through() -> None:
    local = msgspec.structs.replace(NODE, address=NodeAddress(shim_socket="/s", local_socket=True))
    assert ssh_target(a_run(), None, {"n1": local}).node_host is None


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (a_run(JobSpec(image="i", ssh="off"), ssh_host_key=None), "ssh: off"),
        (a_run(JobSpec(image="i"), ssh_host_key=None), "without a public key"),
        (a_run(ssh_host_key=None), "gives it no SSH"),
        (a_run(status=AttemptStatus.SUBMITTED, ports={}), "no container yet"),
        (a_run(status=AttemptStatus.DONE), "has ended: done"),
        (a_run(status=AttemptStatus.DONE, ports={}), "has ended: done"),
    ],
)
def test_why_there_is_no_way_in_is_said(state: RunState, words: str) -> None:
    with pytest.raises(Conflict, match=words) as refused:
        ssh_target(state, None, {"n1": NODE})
    assert refused.value.code == "no_ssh"


@pytest.mark.parametrize(
    "line",
    ["", "nonsense", f'command="sh" {HOST_KEY}', f"{HOST_KEY}\n{HOST_KEY}", "ssh-dss AAAAB3Nz"],
)
async def test_a_line_that_is_no_public_key_is_refused_by_its_position(
    api: TestClient[Any, Any], line: str
) -> None:
    body = {"configuration": CONFIGURATION, "ssh_keys": [HOST_KEY, line]}
    async with api.post("/v1/runs", json=body) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["field"]) == (400, "ssh_keys[1]")


async def test_no_more_keys_than_a_person_has_are_taken(api: TestClient[Any, Any]) -> None:
    body = {"configuration": CONFIGURATION, "ssh_keys": [HOST_KEY] * 33}
    async with api.post("/v1/runs", json=body) as answer:
        assert (answer.status, (await answer.json())["error"]["field"]) == (400, "ssh_keys")
