"""What is broken: on a node's page, in the list of nodes, in the navigation, and events by node."""

from __future__ import annotations

import json
import re
import time

import pytest
from msgspec.structs import replace

from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.machines.orphans import OrphanStatus
from controller.lifecycle.machines.reconcile import Traits
from controller.lifecycle.model import (
    Attempt,
    Node,
    NodeAddress,
    NodeCapacity,
    NodeEvent,
    NodeGpu,
    NodeStatus,
    RunState,
)
from controller.scheduling.index import CapacityIndex
from controller.service.machines.faults import is_broken, was_hit
from controller.store.base import Changes
from controller.web.pages import nodes
from fairlead.model.reasons import Reason
from tests.unit.api.conftest import Controller
from tests.unit.machines.parts import NOW, known_orphan, machine, offer, rentals_of
from tests.unit.store.samples import a_run, submission
from tests.unit.web.conftest import Browser

BROKE_AT = 1000.0
WELL = NodeGpu(uuid="GPU-2", name="H100", memory=80 << 30, healthy=True, message=None)
DEAD = replace(WELL, uuid="GPU-1", healthy=False, message="cordoned: Xid 79: fell off the bus")


def a_node(*gpus: NodeGpu, **more: object) -> Node:
    node = Node(
        id="node1",
        name="h100-1",
        address=NodeAddress(shim_socket="/none", local_socket=True),
        status=NodeStatus.CONNECTED,
        capacity=NodeCapacity(cpu=8.0, memory=64 << 30, gpus=gpus),
        created_at=0.0,
        history=(NodeEvent(at=BROKE_AT, what="GPU GPU-1 is cordoned", why="Xid 79"),),
    )
    changed: Node = replace(node, **more)
    return changed


def a_run_of(name: str, user: str, begun: float, ended: float | None, **more: object) -> RunState:
    """A run whose last attempt had GPU-1 of node1 from `begun` to `ended`."""
    state = a_run(name, name=name, user=user)
    *before, last = state.jobs[0].attempts
    timed = replace(
        last, submitted_at=begun, provisioned_at=begun, running_at=begun, finished_at=ended, **more
    )
    others = (replace(one, node_id="elsewhere") for one in before)
    job = replace(state.jobs[0], attempts=(*others, timed))
    return replace(state, jobs=(job,))


async def break_a_gpu(controller: Controller) -> None:
    """A node whose GPU broke under two runs, after a third had left it."""
    await controller.store.commit(
        submission(
            a_run_of("hit", "admin", 900.0, 1010.0, message="CUDA error"),
            a_run_of("of-ada", "ada", 950.0, None),
            a_run_of("long-gone", "admin", 100.0, 200.0),
        )
    )
    await controller.pipeline.save_node(a_node(DEAD, WELL), "node1")


async def test_a_node_tells_which_jobs_its_broken_gpu_hit(
    admin: Browser, ada: Browser, controller: Controller
) -> None:
    await break_a_gpu(controller)

    shown = await admin.fragment("/dashboard/nodes/node1", "node")
    others = await ada.fragment("/dashboard/nodes/node1", "node")

    hits = shown.partition("Jobs that a broken GPU hit")[2].partition("<h2>Jobs here")[0]
    assert re.findall(r'href="/dashboard/runs/([^"?]+)\?attempt=([^"#]+)#log', hits) == [
        ("of-ada", "of-ada-attempt-1"),
        ("hit", "hit-attempt-1"),
    ]
    assert "main/2" in hits
    assert "GPU-1" in hits
    told = others.partition("Jobs that a broken GPU hit")[2].partition("<h2>Jobs here")[0]
    assert "a run of admin" in told
    assert "hit-attempt-1" not in told
    assert "/dashboard/runs/of-ada" in told


def test_a_job_is_hit_by_a_gpu_that_it_has_when_it_breaks_or_that_ends_it() -> None:
    attempt: Attempt = a_run_of("r", "ada", 900.0, 1010.0).jobs[0].attempts[-1]
    assert was_hit(attempt, BROKE_AT)
    assert was_hit(replace(attempt, finished_at=None), BROKE_AT)
    assert not was_hit(replace(attempt, finished_at=930.0), BROKE_AT)
    assert not was_hit(replace(attempt, provisioned_at=1100.0, finished_at=None), BROKE_AT)
    assert not was_hit(attempt, None)
    assert was_hit(replace(attempt, reason=Reason.GPU_UNHEALTHY), None)
    assert was_hit(replace(attempt, later_reasons=(Reason.GPU_UNHEALTHY,)), None)


@pytest.mark.parametrize(
    ("node", "needs_a_person"),
    [
        (a_node(WELL), False),
        (a_node(WELL, DEAD), True),
        (a_node(WELL, status=NodeStatus.LOST), True),
        (a_node(WELL, status=NodeStatus.CONNECTING), False),
        (a_node(WELL, unfit="its clock is 70 s ahead"), True),
        (a_node(WELL, cordoned=True, cordon_reason="new disk"), False),
        (a_node(WELL, cordoned=True, failed_starts=("a", "b", "c")), True),
        (a_node(WELL, draining=True), False),
    ],
)
def test_what_an_admin_did_is_not_broken(node: Node, needs_a_person: bool) -> None:
    assert is_broken(node) is needs_a_person


async def test_the_list_shows_a_node_with_a_dead_gpu_as_such(
    admin: Browser, controller: Controller
) -> None:
    await controller.pipeline.save_node(a_node(DEAD, WELL), "node1")
    shown = await admin.fragment("/dashboard/nodes", "fleets")
    assert "1 node needs a person" in shown
    assert "1 of 2 GPUs is broken (Xid 79: fell off the bus)" in shown
    assert 'class="status refusal"><span aria-hidden="true">\N{BLACK UP-POINTING TRIANGLE}' in shown
    await controller.pipeline.save_node(a_node(WELL), "node1")
    mended = await admin.fragment("/dashboard/nodes", "fleets")
    assert "a person" not in mended
    assert "is broken" not in mended


async def test_what_the_page_of_nodes_counts_is_of_all_and_not_of_its_list(
    admin: Browser, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "PAGE_OF_NODES", 1)
    for number, gpu in enumerate((WELL, DEAD, DEAD)):
        one = a_node(replace(gpu, uuid=f"GPU-{number}"), id=f"n{number}", name=f"h100-{number}")
        await controller.pipeline.save_node(one, one.id)
    some = [machine(f"m{one}", offer=offer(price=2.0), ordered_at=time.time()) for one in range(3)]
    controller.pipeline.rentals = rentals_of(CapacityIndex(), *some)

    shown = await admin.fragment("/dashboard/nodes", "fleets")

    assert "3 nodes, 3 GPUs (1 free, 2 cordoned)" in shown
    assert "2 nodes need a person" in shown
    assert "h100-2</a>" in shown
    assert "3 machines, 6.00 an hour" in shown
    assert shown.count("There are more") == 2


async def test_admins_see_the_machines_that_no_record_knows_and_what_they_cost(
    admin: Browser, controller: Controller
) -> None:
    traits = Traits(instance_type="small", region="north", spot=True)
    kept = known_orphan(price=0.3, traits=traits)
    ending = known_orphan(
        id="o2", instance_id="i-2", fleet=None, status=OrphanStatus.ENDING, price=None
    )
    gone = known_orphan(id="o3", instance_id="i-3", gone_at=NOW)
    orphans = [kept, ending, gone]
    controller.pipeline.rentals = rentals_of(CapacityIndex(), orphans=orphans)

    shown = await admin.fragment("/dashboard/nodes", "fleets")

    assert "2 machines, 0.30 an hour" in shown
    assert "lab/i-1" in shown
    assert "small (spot)" in shown
    assert "it is kept until an admin ends it" in shown
    assert "an admin had it ended" in shown
    assert "not known, no budget counts it" in shown
    assert "lab/i-3" not in shown


async def test_the_navigation_counts_what_is_broken(admin: Browser, controller: Controller) -> None:
    quiet = await (await admin.open("/dashboard/runs")).text()
    async with await admin.stream() as stream:
        hello = await stream.content.readuntil(b"\n\n")
        await controller.pipeline.save_node(a_node(DEAD, WELL), "node1")
        told = await stream.content.readuntil(b"\n\n")
    loud = await (await admin.open("/dashboard/runs")).text()

    assert 'data-broken="Nodes" hidden' in quiet
    assert json.loads(hello.partition(b"data: ")[2])["broken"] == {"Nodes": 0}
    assert told == b'event: broken\ndata: {"broken":{"Nodes":1}}\n\n'
    assert 'data-broken="Nodes"><span>1</span> broken' in loud


async def test_a_node_that_is_not_heard_says_how_old_its_data_are(
    admin: Browser, controller: Controller
) -> None:
    lost = a_node(WELL, status=NodeStatus.LOST, last_seen_at=60.0)
    await controller.pipeline.save_node(lost, "node1")
    for path, block in (("nodes", "fleets"), ("nodes/node1", "node")):
        shown = await admin.fragment(f"/dashboard/{path}", block)
        assert 'as of <time datetime="1970-01-01T00:01:00.000Z">' in shown


async def test_events_are_filtered_by_node(admin: Browser, controller: Controller) -> None:
    await break_a_gpu(controller)
    about = (("hit", "hit-attempt-1"), ("hit", "hit-attempt-0"), ("of-ada", "of-ada-attempt-1"))
    noted = [
        Event(
            run_id=run_id,
            attempt_id=attempt,
            kind=EventKind.CONNECTION,
            cause="NodeConnected",
            at=2000.0 + at,
            message=f"note {at}",
        )
        for at, (run_id, attempt) in enumerate(about)
    ]
    await controller.store.commit(Changes(events=tuple(noted)))

    every = await admin.fragment("/dashboard/events", "rows")
    there = await admin.fragment("/dashboard/events?node=h100-1", "rows")
    page = await (await admin.open("/dashboard/events?node=h100-1")).text()

    assert re.findall(r">(note \d)<", every) == ["note 2", "note 1", "note 0"]
    assert re.findall(r">(note \d)<", there) == ["note 2", "note 0"]
    assert "GPU GPU-1 is cordoned" in there
    assert "GPU GPU-1 is cordoned" not in every
    assert 'name="node" value="h100-1"' in page
    assert '<option value="h100-1">' in page
    shown = await admin.fragment("/dashboard/nodes/node1", "node")
    assert 'href="/dashboard/events?node=h100-1"' in shown
    assert (await admin.open("/dashboard/events?node=nowhere")).status == 404
