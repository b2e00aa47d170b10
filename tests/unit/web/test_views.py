"""The pages of nodes, queue, events, services, dev environments and users: what they show, and to
whom."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from controller.api.machines.nodes import node_view
from controller.api.views import run_view
from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.machines.model import MachineStatus
from controller.lifecycle.model import (
    Allocation,
    Band,
    Node,
    NodeAddress,
    NodeStatus,
    Resources,
    RunState,
)
from controller.lifecycle.reports import Placed
from controller.scheduling.index import CapacityIndex
from controller.service.machines.use import Holder, NodeUse
from controller.service.runs.queue import QueueEntry
from controller.store.accounts import StoredToken, User
from controller.store.base import Changes
from controller.web.assets import Assets
from controller.web.page import Renderer
from controller.web.pages import people
from controller.web.pages.dev_environments import ways_of
from controller.web.pages.nodes import GIB, bar, gpu_square, node_row
from controller.web.pages.queue import by_band, queue_row
from controller.web.pages.services import group_row
from fairlead.documents.nodes import GpuView
from fairlead.documents.services import ServiceGroupView
from fairlead.model.spec import Role
from fairlead.model.statuses import AllocationState
from fairlead.queries import RunQuery
from tests.unit.api.conftest import ADMIN_TOKEN, Controller
from tests.unit.lifecycle.test_inactivity import NOTES, DeskPlay
from tests.unit.machines.parts import NOW, machine, rentals_of
from tests.unit.web.conftest import Browser, submit

XSS = "<img src=x onerror=alert(1)>"
GPU = GpuView(uuid="GPU-1", name="H100", memory=1, healthy=True, message=None, in_use=False)


async def a_node(browser: Browser, **more: object) -> str:
    body = {"name": "here", "local_socket": "/run/fairlead/shim.sock", **more}
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    answer = await browser.client.post("/v1/nodes", json=body, headers=headers)
    assert answer.status == 201, await answer.text()
    made: str = (await answer.json())["id"]
    return made


@pytest.mark.parametrize(
    ("gpu", "holder", "state", "said"),
    [
        (GPU, None, "free", "H100 GPU-1: free"),
        (GPU, Holder("r1", "train"), "used", "H100 GPU-1: used by train"),
        (
            msgspec.structs.replace(GPU, healthy=False, message="cordoned: Xid 79"),
            Holder("r1", "train"),
            "cordoned",
            "H100 GPU-1: cordoned: Xid 79",
        ),
    ],
)
def test_a_gpu_is_a_square_with_its_state_in_words(
    gpu: GpuView, holder: Holder | None, state: str, said: str
) -> None:
    square = gpu_square(gpu, holder)
    assert (square.state, square.label) == (state, said)
    assert square.clearable is not gpu.healthy


def test_a_bar_is_never_longer_than_the_whole() -> None:
    assert bar("CPU", 3, 4, "cores").width == 750
    assert bar("CPU", 9, 4, "cores").width == 1000
    assert bar("CPU", 0, 0).width == 0


def test_a_bar_tells_short_numbers() -> None:
    assert bar("Memory", 0.09313 * GIB, 23.29 * GIB, "GiB", GIB).label == "0.09 of 23.29 GiB"
    assert bar("Disk", 0, 123_456 * GIB, "GiB", GIB).label == "0 of 123456 GiB"


async def test_empty_fleets_come_last(admin: Browser) -> None:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    for name in ("a-empty", "b-full"):
        await admin.client.post("/v1/fleets", headers=headers, json={"name": name})
    await a_node(admin, fleet="b-full")
    shown = await admin.fragment("/dashboard/nodes", "fleets")
    assert shown.index(">b-full") < shown.index(">a-empty") < shown.index(">default")


def an_entry(**changes: object) -> QueueEntry:
    entry = QueueEntry(
        position=1,
        run_id="r1",
        name="train",
        user="ada",
        band=Band.BATCH,
        priority=0,
        jobs=("main/0", "main/1", "main/2", "main/3"),
        gang=True,
        gpus=8,
        cpu=4.0,
        submitted_at=0.0,
        why="no node has 8 free GPUs",
        nominated=(),
    )
    changed: QueueEntry = msgspec.structs.replace(entry, **changes)
    return changed


def test_the_queue_is_shown_by_band_in_its_order() -> None:
    entries = [
        an_entry(position=1, band=Band.PRODUCTION),
        an_entry(position=2),
        an_entry(position=3),
    ]
    bands = [(band.name, [row.position for row in band.rows]) for band in by_band(entries)]
    assert bands == [("production", [1]), ("batch", [2, 3])]


def test_a_preemption_under_way_says_what_it_waits_for() -> None:
    row = queue_row(an_entry(nominated=("n1", "n2")))
    assert row.why == "it waits until others have left n1, n2"
    assert row.jobs == "main/0, main/1, main/2 and 1 more (gang)"
    assert row.wants == "8 GPUs, 4 CPU"


def test_a_group_of_a_service_shows_its_load() -> None:
    group = ServiceGroupView(
        name="main",
        least=1,
        most=4,
        wanted=2,
        why="3 requests/s",
        rps=3.0,
        errors=1,
        in_flight=2,
        latency_p50=0.01,
        latency_p95=0.2,
        next=2,
        next_why="",
        next_at=None,
    )
    assert group_row(msgspec.structs.replace(group, nodes=2)).wanted.endswith("2 nodes each")
    row = group_row(group)
    assert (row.wanted, row.load) == ("2 of 1..4", "3 requests/s, 2 in flight, 1 errors")
    assert row.latency == "p50 10 ms, p95 200 ms"


def with_ssh(state: RunState, ssh: Literal["embedded", "off"]) -> RunState:
    replace = msgspec.structs.replace
    jobs = tuple(replace(job, spec=replace(job.spec, ssh=ssh)) for job in state.jobs)
    return replace(state, jobs=jobs)


def test_a_dev_environment_is_opened_when_it_runs_and_in_the_browser_when_it_answers() -> None:
    desk, notes = DeskPlay(), DeskPlay(NOTES)

    states = [
        with_ssh(state, "embedded")
        for state in (
            desk.state,
            desk.to_running().state,
            notes.to_running().state,
            notes.answers().state,
        )
    ]

    found = [ways_of(state, run_view(state, {})) for state in states]
    link = "vscode://vscode-remote/ssh-remote+play/workflow"
    assert [(one.can_open, one.desktop, one.browser) for one in found if one is not None] == [
        (False, link, False),
        (True, link, False),
        (False, None, True),
        (True, None, True),
    ]


def test_a_dev_environment_without_ssh_says_so_and_offers_no_command_that_needs_it() -> None:
    state = with_ssh(DeskPlay().to_running().state, "off")

    ways = ways_of(state, run_view(state, {}))

    assert ways is not None
    assert ways.desktop is None
    shown = Renderer(Assets()).whole("ways.html", {"ways": ways})
    assert "It has no SSH: it was submitted with `ssh: off`" in shown
    assert "fairlead ssh" not in shown


async def test_dev_environments_are_listed_with_how_long_they_may_be_left_alone(
    admin: Browser, ada: Browser
) -> None:
    desk = {"type": "dev-environment", "ide": "vscode", "inactivity_duration": "2h"}
    run = await submit(admin, commands=[], name="desk", **desk)

    shown = await admin.fragment("/dashboard/dev-environments", "environments")
    assert "stops after 2 h 0 min without use" in shown
    assert "It opens when it runs." in shown
    assert "desk" not in await ada.fragment("/dashboard/dev-environments", "environments")
    overview = await admin.fragment(f"/dashboard/runs/{run['id']}", "overview")
    assert "It opens when it runs." in overview
    assert "Scale" not in overview


async def test_a_service_leads_to_its_address_and_scales_itself(admin: Browser) -> None:
    run = await submit(admin, type="service", name="api", port=8000)

    overview = await admin.fragment(f"/dashboard/runs/{run['id']}", "overview")
    assert 'href="/dashboard/open/api"' in overview
    assert "Scale" not in overview
    assert 'href="/dashboard/open/api"' in await admin.fragment("/dashboard/services", "services")


async def test_what_is_older_than_many_tasks_is_listed(
    admin: Browser, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(admin, type="service", name="api", port=8000)
    await submit(admin, commands=[], name="desk", type="dev-environment", ide="vscode")
    await submit(admin, name="newer")
    listed = controller.store.list_runs

    async def newest(query: RunQuery) -> list[RunState]:
        return (await listed(query))[:1]

    # As if a page of runs were full of tasks.
    monkeypatch.setattr(controller.store, "list_runs", newest)
    assert "api" in await admin.fragment("/dashboard/services", "services")
    assert "desk" in await admin.fragment("/dashboard/dev-environments", "environments")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("queue", "Nothing waits"),
        ("nodes", "fairlead node install"),
        ("services", "type: service"),
        ("dev-environments", "type: dev-environment"),
        ("events", "Nothing has happened yet"),
    ],
)
async def test_an_empty_page_says_what_to_do(admin: Browser, path: str, words: str) -> None:
    answer = await admin.open(f"/dashboard/{path}")
    assert answer.status == 200
    assert words in await answer.text()


async def test_a_node_shows_its_attributes_as_text(admin: Browser) -> None:
    node = await a_node(admin, attributes={"rack": XSS})
    for path, target in (("/dashboard/nodes", "fleets"), (f"/dashboard/nodes/{node}", "node")):
        page = await admin.fragment(path, target)
        assert XSS not in page
        assert "rack" in page
        assert "&lt;img src=x" in page


def test_a_connected_node_is_heard_now_and_another_one_since_a_time() -> None:
    address = NodeAddress(shim_socket="/none", local_socket=True)
    node = Node(id="n1", name="n1", address=address, created_at=0.0)
    rows = [
        node_row(node_view(msgspec.structs.replace(node, status=status), NodeUse(), seen_at), {})
        for status, seen_at in (
            (NodeStatus.CONNECTED, 0.0),
            (NodeStatus.LOST, 0.0),
            (NodeStatus.CONNECTING, None),
        )
    ]
    assert [(row.heard, row.silent_since) for row in rows] == [
        ("now", None),
        ("", "1970-01-01T00:00:00.000Z"),
        ("never", None),
    ]


async def test_a_node_is_cordoned_and_given_work_again(admin: Browser) -> None:
    node = await a_node(admin)
    address = f"/dashboard/nodes/{node}"

    done = await admin.act(f"{address}/cordon", reason=XSS)
    page = await admin.fragment(address, "node")
    again = await admin.act(f"{address}/uncordon")

    assert (done.status, again.status) == (204, 204)
    assert "cordoned: &lt;img src=x" in page
    assert "cordoned: " not in await admin.fragment(address, "node")


async def test_a_node_tells_what_happened_to_it_and_who_asked_for_it(admin: Browser) -> None:
    node = await a_node(admin)
    await admin.act(f"/dashboard/nodes/{node}/cordon", reason="a <new> disk")
    await admin.act(f"/dashboard/nodes/{node}/uncordon")

    shown = await admin.fragment(f"/dashboard/nodes/{node}", "node")

    what = [part.split("<")[0] for part in shown.split('data-label="What">')[1:]]
    assert what == ["uncordoned", "cordoned", "added"]
    assert "admin asked for it" in shown
    assert "a &lt;new&gt; disk" in shown
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    found = await (await admin.client.get(f"/v1/nodes/{node}", headers=headers)).json()
    told = [(one["what"], one["why"], one["by"]) for one in found["events"]]
    assert told[1] == ("cordoned", "a <new> disk", "admin")
    listed = await (await admin.client.get("/v1/nodes", headers=headers)).json()
    assert [one["events"] for one in listed["nodes"]] == [[]]


async def test_a_node_is_drained_and_resumed(admin: Browser) -> None:
    node = await a_node(admin)
    assert (await admin.act(f"/dashboard/nodes/{node}/drain", reason="disk")).status == 204
    assert "draining: disk" in await admin.fragment("/dashboard/nodes", "fleets")
    assert (await admin.act(f"/dashboard/nodes/{node}/resume")).status == 204
    assert (await admin.act(f"/dashboard/nodes/{node}/explode")).status == 400


async def test_only_admins_act_on_nodes(admin: Browser, ada: Browser) -> None:
    node = await a_node(admin)
    assert (await ada.act(f"/dashboard/nodes/{node}/cordon")).status == 403
    assert 'hx-post="' not in await ada.fragment(f"/dashboard/nodes/{node}", "node")


async def test_a_gpu_leads_its_owner_to_the_run_and_others_not(
    admin: Browser, controller: Controller
) -> None:
    run = await submit(admin, name="secret-plan")
    job = run["jobs"][0]
    place = Allocation(
        id="a1",
        run_id=run["id"],
        job_id=job["id"],
        node_id="n1",
        state=AllocationState.HELD,
        resources=Resources(),
        gpus=("GPU-1",),
        created_at=0.0,
    )
    attempt = job["attempts"][0]["id"]
    await controller.pipeline.report(Placed(run_id=run["id"], attempt_id=attempt, allocation=place))
    users = controller.service.accounts.gate.users
    own, other = (
        controller.service.machines.nodes.holders(users[name]) for name in ("admin", "ada")
    )
    assert own["n1"]["GPU-1"] == Holder(run["id"], "secret-plan")
    assert other["n1"]["GPU-1"] == Holder(None, "a run of admin")


async def test_the_queue_names_no_runs_of_others(admin: Browser, ada: Browser) -> None:
    run = await submit(admin, name="secret-plan")
    own = await admin.fragment("/dashboard/queue", "queue")
    other = await ada.fragment("/dashboard/queue", "queue")
    assert f'href="/dashboard/runs/{run["id"]}"' in own
    assert "secret-plan" not in other
    assert "a run of admin" in other


async def test_the_queue_goes_on_after_a_place(admin: Browser) -> None:
    runs = [await submit(admin, name=name) for name in ("first", "second")]
    rows = await admin.fragment("/dashboard/queue?after=1", "queue")
    assert [f'/runs/{run["id"]}"' in rows for run in runs] == [False, True]
    assert 'href="/dashboard/queue?after=0"' in rows
    assert "shorter than that" in await admin.fragment("/dashboard/queue?after=2", "queue")
    assert (await admin.open("/dashboard/queue?after=x")).status == 400


async def test_events_are_shown_newest_first_and_page_by_page(admin: Browser, ada: Browser) -> None:
    for number in range(60):
        await submit(admin, name=f"run-{number}")
    first = await admin.fragment("/dashboard/events", "rows")
    before = first.split("?before=")[1].split("&")[0]
    second = await admin.fragment(f"/dashboard/events?before={before}", "rows")
    seqs = [int(part.split('"')[0]) for part in (first + second).split('id="event-')[1:]]
    assert seqs == sorted(seqs, reverse=True)
    assert seqs[0] - seqs[-1] == len(seqs) - 1
    assert "data-row" not in await ada.fragment("/dashboard/events", "rows")
    assert (await admin.open("/dashboard/events?before=x")).status == 400


async def test_an_event_names_its_job_and_its_cause_in_words(
    admin: Browser, controller: Controller
) -> None:
    run = await submit(admin, name="told")
    job = run["jobs"][0]
    attempt = job["attempts"][0]["id"]
    about = {"run_id": run["id"], "job_id": job["id"], "attempt_id": attempt}
    noted = Event(
        **about, kind=EventKind.CONNECTION, cause="NodeConnected", at=1.0, to_status="connected"
    )
    await controller.store.commit(Changes(events=(noted,)))

    for path, block in (("events", "rows"), (f"runs/{run['id']}", "events")):
        shown = await admin.fragment(f"/dashboard/{path}", block)
        assert ">connection main/0 #0: connected<" in shown
        assert ">the controller reaches the node<" in shown
    assert ">told</a>" in await admin.fragment("/dashboard/events", "rows")


async def test_events_of_an_ended_run_are_named_too(admin: Browser) -> None:
    run = await submit(admin, name="over")
    await admin.act(f"/dashboard/runs/{run['id']}/actions/abort")
    headers = {"X-Fairlead-Page": admin.page_token}
    path = f"/dashboard/api/v1/runs/{run['id']}/watch"
    async with admin.client.get(path, headers=headers) as until_it_ends:
        await until_it_ends.read()
    for _ in range(2):  # the second time from what is known
        shown = await admin.fragment("/dashboard/events", "rows")
        assert ">over</a>" in shown
        assert ">attempt main/0 #0: " in shown


async def test_a_refusal_keeps_the_navigation_of_a_user(admin: Browser, stranger: Browser) -> None:
    for path, what in (("runs/none", "there is no run"), ("nonsense", "there is no page")):
        answer = await admin.open(f"/dashboard/{path}")
        text = await answer.text()
        assert answer.status == 404
        assert "<h1>Not Found</h1>" in text
        assert what in text
        assert '<nav aria-label="Pages">' in text
    assert (await stranger.open("/dashboard/nonsense")).headers["Location"].endswith("nonsense")


async def test_users_and_tokens_are_for_admins(admin: Browser, ada: Browser) -> None:
    assert (await ada.open("/dashboard/users")).status == 403
    page = await admin.fragment("/dashboard/users", "people")
    assert ">ada" in page
    made = await admin.client.post(
        "/dashboard/users",
        data={"what": "token", "name": "ada", "label": XSS, "days": "30"},
        headers={"HX-Request": "true", "HX-Target": "people", "X-Fairlead-Page": admin.page_token},
    )
    shown = await made.text()
    assert 'id="new-token">' in shown
    assert XSS not in shown
    assert "expires <time" in shown
    assert (await admin.act("/dashboard/users", what="token", days="soon")).status == 400
    assert (await admin.act("/dashboard/users/ada/grant")).status == 204
    assert "Take production" in await admin.fragment("/dashboard/users", "people")
    assert (await admin.act("/dashboard/users/ada/remove")).status == 204
    assert ">ada" not in await admin.fragment("/dashboard/users", "people")


async def test_each_user_has_his_tokens_however_many_others_have(
    admin: Browser, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people, "PAGE_OF_USERS", 2)
    monkeypatch.setattr(people, "MAX_TOKENS", 2)
    many = [
        StoredToken(id=f"a{number}", user="ada", digest=f"a{number}", created_at=4e9 + number)
        for number in range(1, 5)
    ]
    last = User(name="zoe", role=Role.USER, created_at=0.0)
    changes = Changes(users=(last,), tokens=tuple(many))
    await controller.store.commit(changes)
    controller.service.accounts.gate.apply(changes)

    shown = await admin.fragment("/dashboard/users", "people")

    own = shown.split(">ada", 1)[1].split("</tr>", 1)[0]
    # The newest: those that somebody has just made are looked for.
    assert [one for one in ("a1", "a2", "a3", "a4") if f">{one}<" in own] == ["a3", "a4"]
    assert "fairlead token list --user ada" in own
    assert "There are more users" in shown
    assert ">zoe" not in shown


async def test_rented_machines_are_shown_with_status_price_and_idle_time(
    admin: Browser, ada: Browser, controller: Controller
) -> None:
    assert "Rented machines" not in await admin.fragment("/dashboard/nodes", "fleets")
    idle = machine("m1", status=MachineStatus.JOINED, joined_at=NOW, idle_since=NOW)
    coming = machine("m2", trouble="its provider does not answer")
    controller.pipeline.rentals = rentals_of(CapacityIndex(), idle, coming)
    shown = await admin.fragment("/dashboard/nodes", "fleets")
    assert "2 machines, 2.00 an hour" in shown
    assert 'href="/dashboard/nodes/m1"' in shown
    assert 'href="/dashboard/nodes/m2"' not in shown
    assert "its provider does not answer" in shown
    assert "2023-11-14T22:13:20" in shown
    # As `fairlead cost`: what all spend together is for admins.
    others = await ada.fragment("/dashboard/nodes", "fleets")
    assert "2 machines</span>" in others
    assert "an hour</span>" not in others
    assert 'data-label="Price an hour">1.00<' in others
