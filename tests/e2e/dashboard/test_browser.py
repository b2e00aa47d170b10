"""The dashboard in Chromium: its scripts, its stream, its keys, and what a screen reader meets."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from urllib.parse import quote

import pytest
from aiohttp.test_utils import TestServer
from msgspec.structs import replace
from playwright.async_api import Browser, Page, Route, expect

from controller.lifecycle.events import Event, EventKind
from controller.lifecycle.inventory import Budget
from controller.lifecycle.machines.model import MachineStatus
from controller.lifecycle.model import (
    Node,
    NodeAddress,
    NodeCapacity,
    NodeGpu,
    NodeStatus,
    RunState,
)
from controller.scheduling.index import CapacityIndex
from controller.service.runs.submission_stages import Submission
from controller.store.base import Changes
from fairlead.model.statuses import AttemptStatus, RunStatus
from tests.doubles.node import FakeConnection
from tests.e2e.dashboard.conftest import AXE, LIVE, PATIENCE, SERIOUS, visit
from tests.unit.api.asking import write_log
from tests.unit.api.conftest import ADMIN_TOKEN, Controller
from tests.unit.machines.parts import fleet, machine, offer, rentals_of
from tests.unit.store.samples import a_run, submission
from tests.unit.web.test_jobs import a_sweep

pytestmark = pytest.mark.e2e

XSS = "<img src=x onerror=alert(1)>"
TOO_WIDE = """() => [...document.querySelectorAll("html, nav, main, .scroll, tbody tr, td")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 1)
    .map((one) => `${one.tagName}.${one.className} ${one.scrollWidth} > ${one.clientWidth}`)"""
"""What would scroll sideways, or be cut off."""
OVERLAPS = """() => [...document.querySelectorAll("td[data-label]")].filter((cell) => {
    const label = getComputedStyle(cell, "::before");
    if (label.content === "none" || label.position !== "absolute") return false;
    return parseFloat(label.width) > parseFloat(getComputedStyle(cell).paddingLeft);
}).map((cell) => cell.dataset.label)"""
"""Columns whose name lies over what the cell says."""
CHANGED = "document.getElementById('overview').dispatchEvent(new CustomEvent('changed'))"
WIDEST = """() => Math.max(...[...document.querySelectorAll("main table, main section")]
    .map((one) => one.getBoundingClientRect().width))"""
LABEL = "getComputedStyle(document.querySelector('td[data-label=Status]'), '::before').content"
TASK = {"type": "task", "commands": ["true"]}
SERVICE = {"type": "service", "commands": ["true"], "port": 8000}
DESK = {"type": "dev-environment", "ide": "vscode"}


async def press_both(page: Page, first: str, second: str) -> None:
    """Press keys that belong together if little time is between them: for the page none passes."""
    await page.clock.set_fixed_time(time.time())
    await page.keyboard.press(first)
    await page.keyboard.press(second)


async def submit(
    controller: Controller, name: str, user: str = "admin", like: Mapping[str, object] = TASK
) -> str:
    service = controller.service
    submission = Submission(configuration={**like, "name": name})
    submitted = await service.runs.submissions.submit(
        submission, user=service.accounts.gate.users[user]
    )
    return submitted.state.run.id


def a_node(name: str, said: str) -> Node:
    """A node that says this of itself, with a GPU that it found broken."""
    gpu = NodeGpu(uuid="GPU-0", name=said, memory=80, healthy=False, message=said)
    return Node(
        id=name,
        name=name,
        address=NodeAddress(shim_socket="/none", local_socket=True),
        status=NodeStatus.CONNECTED,
        message=said,
        cordoned=True,
        cordon_reason=said,
        attributes={"rack": said},
        capacity=NodeCapacity(cpu=8.0, memory=64 << 30, gpus=(gpu,)),
        created_at=0.0,
    )


def ended_with(message: str) -> RunState:
    """A run whose end, and the end of whose attempt, said this."""
    state = a_run("ended", user="admin", status=RunStatus.FAILED)
    job = state.jobs[0]
    attempts = tuple(
        replace(one, status=AttemptStatus.FAILED, message=message, finished_at=200.0)
        for one in job.attempts
    )
    run = replace(state.run, message=message, finished_at=200.0)
    return replace(state, run=run, jobs=(replace(job, attempts=attempts),))


def address_of(site: TestServer) -> str:
    return str(site.make_url("")).rstrip("/")


async def test_the_list_and_a_run_follow_what_happens(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    page = await visit(chromium, controller, address_of(site), "admin")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    await expect(page.get_by_text("There are no runs yet.")).to_be_visible()

    await submit(controller, "train")
    await page.get_by_role("link", name="train").click()
    await expect(page.locator("#overview .status-pending").first).to_be_visible()
    await page.locator(LIVE).wait_for()

    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator("#confirm")).to_contain_text("Stop train?")
    await page.get_by_role("button", name="Yes").click()
    await expect(page.locator("#toasts")).to_contain_text("stop was requested")
    await expect(page.locator(".status-line")).to_contain_text("terminated")
    await expect(page.locator("#overview .status-killed").first).to_be_visible()
    assert errors == []


async def test_seven_windows_of_a_browser_share_one_stream_and_are_all_live(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    run_id = await submit(controller, "train")
    first = await visit(chromium, controller, address_of(site), "admin")
    pages = [first, *[await first.context.new_page() for _ in range(7)]]
    for page in pages:
        page.set_default_timeout(PATIENCE)
        await page.goto(f"{address_of(site)}/dashboard/runs/{run_id}")
        await page.locator(LIVE).wait_for()
    user = controller.service.accounts.gate.users["admin"]
    await controller.service.runs.actions.suspend(run_id, abort_running=False, user=user)

    for page in pages:
        await expect(page.locator(".status-line")).to_contain_text("It is suspended")


async def test_a_run_of_300_jobs_is_filtered_and_read_on_one_document(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    await controller.store.commit(submission(a_sweep()))
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.goto(f"{address_of(site)}/dashboard/runs/sweep")
    await page.locator(LIVE).wait_for()
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    await page.evaluate("document.body.dataset.same = 'yes'")

    await page.locator(".states a", has_text="failed").click()
    rows = page.locator("#jobs a[id^=job-]")
    await expect(rows).to_have_text(["main/7", "main/107", "main/207"])
    await rows.nth(1).click()
    await expect(page.locator("[data-log-part=choice]")).to_have_value("of-107-attempt-0")
    await page.wait_for_url("**/runs/sweep?state=failed&attempt=of-107-attempt-0#log")

    assert await page.evaluate("document.body.dataset.same") == "yes"
    parts = [one.partition("/dashboard/runs/")[2] for one in asked]
    assert [one for one in parts if one] == ["sweep?state=failed"]
    await page.reload()
    await expect(rows).to_have_count(3)
    await expect(page.locator("[data-log-part=choice]")).to_have_value("of-107-attempt-0")
    async with page.expect_request_finished(lambda one: "/runs/sweep?state=failed" in one.url):
        await page.evaluate(CHANGED)
    await expect(rows).to_have_count(3)

    find = page.get_by_label("Find")
    await find.fill("nothing like it")
    await page.get_by_role("link", name="Show all jobs").click()
    await expect(rows).to_have_count(50)
    await expect(find).to_have_value("")


async def test_a_log_is_searched_for_what_is_on_the_screen_and_the_match_is_in_the_address(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    run_id = await submit(controller, "train")
    state = await controller.service.runs.lookup.get(run_id)
    attempt = state.jobs[0].attempts[0].id
    lines = [f"step \x1b[32m{at}\x1b[0m loss 0.{at:03}\n".encode() for at in range(2000)]
    await write_log(controller, attempt, *lines)
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.goto(f"{address_of(site)}/dashboard/runs/{run_id}")
    search, count = (page.locator(f"[data-log-part={name}]") for name in ("search", "count"))
    marks = page.locator(".log-here mark")

    await search.fill("STEP 1234 loss")
    await search.press("Enter")
    await expect(count).to_have_text("1 of 1")
    await expect(marks).to_have_text(["step ", "1234", " loss"])

    await page.get_by_label("Regular expression").check()
    await expect(count).to_have_text("1 of 1")  # it is searched for again, and leads to its match
    await page.get_by_role("button", name="Start").click()
    await expect(page.locator(".log-text").first).to_have_text("step 0 loss 0.000")
    await search.fill(r"^step 1\d00 loss 0\.1[0-2]00$")
    await search.press("Enter")
    await expect(count).to_have_text("1 of 3")
    await search.press("Enter")
    await expect(count).to_have_text("2 of 3")
    await expect(marks).to_have_text(["step ", "1100", " loss 0.1100"])
    offset = sum(len(line) for line in lines[:1100])
    await page.wait_for_url(lambda url: f"&match={offset}&regex=yes#log" in url)
    await page.reload()
    await expect(count).to_have_text("2 of 3")
    await expect(marks).to_have_text(["step ", "1100", " loss 0.1100"])

    await search.fill("a(b")
    await search.press("Enter")
    status = page.locator("#log [data-log-part=status]")
    await expect(status).to_contain_text("this is no regular expression: missing )")


async def test_rows_that_come_late_do_not_lead_back_to_the_match_before(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    run_id = await submit(controller, "train")
    state = await controller.service.runs.lookup.get(run_id)
    words = ["warning" if at in (1000, 1010) else "fine" for at in range(2000)]
    lines = [f"step {at} {word}\n".encode() for at, word in enumerate(words)]
    await write_log(controller, state.jobs[0].attempts[0].id, *lines)
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.goto(f"{address_of(site)}/dashboard/runs/{run_id}")
    texts, here = page.locator(".log-text"), page.locator(".log-here .log-text")
    search = page.locator("[data-log-part=search]")
    is_asked, may_go_on = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        is_asked.set()
        await may_go_on.wait()
        await route.continue_()

    await expect(texts.last).to_have_text("step 1999 fine")
    await page.route("**/logs/window?*before=*", hold)
    await search.fill("warning")
    await search.press("Enter")
    await is_asked.wait()
    await expect(here).to_have_text("step 1000 warning")
    await search.press("Enter")
    await expect(here).to_have_text("step 1010 warning")
    first = await texts.first.inner_text()
    may_go_on.set()

    await expect(texts.first).not_to_have_text(first)
    await expect(here).to_have_text("step 1010 warning")


async def test_a_login_leads_on_to_the_log_that_was_asked_for(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    run_id = await submit(controller, "train")
    page = await (await chromium.new_context()).new_page()
    page.set_default_timeout(PATIENCE)
    asked = f"{address_of(site)}/dashboard/runs/{run_id}?search=loss#log"
    await page.goto(asked)
    await page.get_by_label("Your token").fill("wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.get_by_label("Your token").fill(ADMIN_TOKEN)
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(asked)
    await page.locator(LIVE).wait_for()


async def test_a_page_says_how_old_its_data_are(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.clock.install()
    await page.reload()
    await page.locator(LIVE).wait_for()

    await site.close()

    connection = page.locator("#connection")
    await expect(connection).to_contain_text("reconnecting")
    await page.clock.fast_forward(61_000)
    await expect(connection).to_have_text("reconnecting, the data are 1 min old")
    await expect(connection).to_have_attribute("data-state", "old")


async def test_ages_are_counted_by_the_clock_of_the_controller(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    await submit(controller, "train")
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.clock.install(time=0)  # this browser believes that it is 1970
    await page.reload()
    age = page.locator("tr", has_text="train").locator("time")
    await expect(age).to_have_text(re.compile(r"^\d+ s ago$"))


async def test_two_users_see_their_own_runs(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    ada = await visit(chromium, controller, address_of(site), "ada")
    admin = await visit(chromium, controller, address_of(site), "admin")

    await submit(controller, "of-ada", "ada")
    await submit(controller, "of-admin")

    await expect(admin.get_by_role("link", name="of-ada")).to_be_visible()
    await expect(admin.get_by_role("link", name="of-admin")).to_be_visible()
    await expect(ada.get_by_role("link", name="of-ada")).to_be_visible()
    await expect(ada.get_by_role("link", name="of-admin")).to_have_count(0)


async def test_no_page_shows_a_user_the_runs_of_another(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    run_id = await submit(controller, "secret-plan")
    await controller.pipeline.save_node(a_node("n1", "Xid 79"), "n1")
    page = await visit(chromium, controller, address_of(site), "ada")
    pages = ["runs", "runs?user=admin", "queue", "nodes", "nodes/n1", "services", "events"]
    pages.append("dev-environments")
    for path in pages:
        await page.goto(f"{address_of(site)}/dashboard/{path}")
        await expect(page.locator("h1")).to_be_visible()
        text = await page.content()
        assert ("secret-plan" in text, run_id in text) == (False, False), path
    hidden = dict.fromkeys(
        (f"runs/{run_id}", f"runs/{run_id}/log.txt", f"events?run={run_id}"), 404
    )
    for path, status in {**hidden, "users": 403}.items():
        answer = await page.goto(f"{address_of(site)}/dashboard/{path}")
        assert answer is not None
        assert answer.status == status, path
    assert await page.get_by_role("link", name="Users").count() == 0


async def test_no_field_becomes_markup_on_any_page(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    run_id = await submit(controller, "train")
    service = controller.service
    admin = service.accounts.gate.users["admin"]
    await service.accounts.users.add_token("ada", label=XSS, by=admin)
    await controller.pipeline.save_node(a_node("n1", XSS), "n1")
    await controller.store.commit(submission(ended_with(XSS)))
    noted = Event(run_id=run_id, kind=EventKind.LATER_REASON, cause=XSS, at=1.0, message=XSS)
    await controller.store.commit(Changes(events=(noted,)))
    page = await visit(chromium, controller, address_of(site), "admin")
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    shown = {
        "runs": 0,
        "runs/ended": 3,
        f"runs/{run_id}": 2,
        "queue": 0,
        "nodes": 2,
        "nodes/n1": 4,
        "services": 0,
        "dev-environments": 0,
        "events": 2,
        "users": 1,
    }
    for path, least in shown.items():
        await page.goto(f"{address_of(site)}/dashboard/{path}")
        await page.locator(LIVE).wait_for()
        assert await page.locator("img, main script").count() == 0, path
        assert (await page.locator("main").inner_text()).count(XSS) >= least, path
    await page.goto(f"{address_of(site)}/dashboard/runs?text={quote(XSS)}")
    await expect(page.get_by_label("Name", exact=True)).to_have_value(XSS)
    assert await page.locator("img").count() == 0
    assert faults == []


async def test_a_gpu_is_cleared_and_a_node_drained_by_their_buttons(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    broken = a_node("n1", "Xid 79")
    connection = FakeConnection()
    controller.connections["n1"] = connection
    await controller.pipeline.save_node(broken, "n1")
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.goto(f"{address_of(site)}/dashboard/nodes/n1")
    await page.locator(LIVE).wait_for()
    await expect(page.locator(".gpu-list")).to_contain_text("cordoned: Xid 79")

    await page.get_by_role("button", name="Clear").click()
    await page.get_by_role("button", name="Yes").click()
    await expect(page.locator("#toasts")).to_contain_text("offers GPU-0 again")
    assert connection.shim.asked == [("clear_gpu", "GPU-0")]

    await page.get_by_label("Reason").last.fill("a new disk")
    await page.get_by_role("button", name="Drain").click()
    await expect(page.locator("#confirm")).to_contain_text("Empty n1?")
    await page.get_by_role("button", name="Yes").click()
    await expect(page.locator("#node")).to_contain_text("draining: a new disk")


async def test_a_run_is_found_opened_and_stopped_by_keys_alone(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    await submit(controller, "train")
    page = await visit(chromium, controller, address_of(site), "admin")
    press = page.keyboard.press
    await press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await press("Enter")
    await press("j")
    await press("Enter")
    await expect(page.get_by_role("heading", name="train")).to_be_visible()
    await page.locator(LIVE).wait_for()
    for _ in range(40):
        if await page.evaluate("document.activeElement.id") == "act-stop":
            break
        await press("Tab")
    await press("Enter")
    await expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    await press("Escape")
    await expect(page.locator("#confirm")).to_be_hidden()
    await expect(page.locator("#act-stop")).to_be_focused()
    await press("Enter")
    await expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    await press("Tab")
    await press("Enter")
    await expect(page.locator(".status-line")).to_contain_text("terminated")
    for key, heading in (("q", "Queue"), ("n", "Nodes"), ("e", "Events"), ("u", "Users")):
        await press_both(page, "g", key)
        await expect(page.locator("h1")).to_contain_text(heading)
        await page.locator(LIVE).wait_for()


async def test_a_question_outlives_a_change_of_what_it_asks_about(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    run_id = await submit(controller, "train")
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.goto(f"{address_of(site)}/dashboard/runs/{run_id}")
    await page.locator(LIVE).wait_for()
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator("#confirm")).to_be_visible()
    changed = "document.getElementById('overview').dispatchEvent(new CustomEvent('changed'))"
    async with page.expect_event(
        "requestfinished", lambda request: request.url.endswith(run_id) and request.method == "GET"
    ):
        await page.evaluate(changed)
    await page.get_by_role("button", name="Yes").click()
    await expect(page.locator("#toasts")).not_to_be_empty()  # it goes after some seconds
    await expect(page.locator(".status-line")).to_contain_text("terminated")


async def test_what_a_reader_typed_unfolded_and_selected_outlives_a_change(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    service = controller.service
    run_id = await submit(controller, "train")
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.get_by_role("link", name="train").click()
    wanted = page.locator("#scale-main")
    await expect(wanted).to_be_visible()
    await page.locator(LIVE).wait_for()
    await page.locator("details", has_text="place 1 in the queue").locator("summary").click()
    await wanted.fill("3")
    await page.locator(".status-line strong").select_text()

    user = service.accounts.gate.users["admin"]
    await service.runs.actions.scale(run_id, group="main", nodes=2, user=user)

    await expect(page.locator("a[id^=job-]")).to_have_count(2)
    await expect(page.locator("#overview details[open]")).to_contain_text("main/1")
    await expect(wanted).to_have_value("3")
    assert await page.evaluate("getSelection().toString()") == "The run is submitted."
    await page.get_by_role("button", name="Scale").click()
    await page.get_by_role("button", name="Yes").click()
    await expect(page.locator("a[id^=job-]")).to_have_count(3)
    await service.runs.actions.scale(run_id, group="main", nodes=1, user=user)
    await expect(wanted).to_have_value("1")


async def test_keys_search_and_back_work_without_a_mouse(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    for name in ("alpha", "beta"):
        await submit(controller, name)
    page = await visit(chromium, controller, address_of(site), "admin")

    await page.keyboard.press("/")
    await page.keyboard.type("alph")
    await page.wait_for_url("**/dashboard/runs?text=alph")  # a slow typist asks for "al" before
    await expect(page.get_by_role("link", name="beta")).to_have_count(0)
    await page.get_by_label("Band").select_option("batch")
    await expect(page.get_by_text("No run matches these filters.")).to_be_visible()
    assert page.url.endswith("/dashboard/runs?text=alph&band=batch")
    await page.go_back()
    await expect(page.get_by_role("link", name="alpha")).to_be_visible()
    await expect(page.get_by_label("Band")).to_have_value("")
    await page.locator(LIVE).wait_for()
    await page.locator("#main").focus()
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="alpha")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_label("Name", exact=True)).to_have_value("alph")
    await page.locator(LIVE).wait_for()
    await page.locator("#main").focus()
    await press_both(page, "g", "r")
    await expect(page.get_by_role("link", name="beta")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_serious(
    chromium: Browser, controller: Controller, site: TestServer, theme: str
) -> None:
    run_id = await submit(controller, "train")
    await submit(controller, "api", like=SERVICE)
    await submit(controller, "desk", like=DESK)
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    for path in ("runs", f"runs/{run_id}", "services", "dev-environments", "login"):
        await page.goto(f"{address_of(site)}/dashboard/{path}")
        await page.evaluate(AXE.read_text())
        assert await page.evaluate(SERIOUS) == [], path


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_a_phone_shows_every_page_without_scrolling_sideways(
    chromium: Browser, controller: Controller, site: TestServer, theme: str
) -> None:
    run_id = await submit(controller, "train-a-model-with-a-long-name-of-41-letters"[:41])
    await submit(controller, "answer-under-a-long-name-with-41-letters-"[:40], like=SERVICE)
    await submit(controller, "desk-of-someone-with-a-name-of-40-letters"[:40], like=DESK)
    await controller.pipeline.save_node(a_node("n1", "Xid 79 " + "without-a-space" * 6), "n1")
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    await page.set_viewport_size({"width": 360, "height": 640})
    pages = ("queue", "nodes", "nodes/n1", "services", "dev-environments", "events", "users")
    for path in ("runs", f"runs/{run_id}", *pages):
        await page.goto(f"{address_of(site)}/dashboard/{path}")
        await page.locator(LIVE).wait_for()
        assert await page.evaluate(TOO_WIDE) == [], path
        await page.evaluate(AXE.read_text())
        assert await page.evaluate(SERIOUS) == [], path
    await page.goto(f"{address_of(site)}/dashboard/runs")
    await page.locator(LIVE).wait_for()
    shown = await page.evaluate(LABEL)  # in one step, since the table may be replaced at any time
    assert shown == '"Status"'


@pytest.mark.parametrize("width", [360, 1280])
async def test_machines_and_their_costs_are_shown_without_scrolling_sideways(
    chromium: Browser, controller: Controller, site: TestServer, width: int
) -> None:
    now = controller.service.clock.now()
    trouble = "terminate_instances in eu-central-1: the credentials are not valid (AuthFailure)"
    ending = {"status": MachineStatus.TERMINATING, "trouble": trouble}
    controller.pipeline.rentals = rentals_of(
        CapacityIndex(),
        machine("burst-2b40b728", user="a-user-whose-name-has-some-40-letters-in", run_id="r1"),
        machine("burst-0b05c6e4", offer=offer(price=55.04), ordered_at=now - 7200.0, **ending),
    )
    controller.pipeline.fleets["burst"] = fleet(budget=Budget(per_hour=60.0, per_month=5000.0))
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.set_viewport_size({"width": width, "height": 900})
    for path in ("cost?by=user", "cost?by=user&per=month", "nodes"):
        await page.goto(f"{address_of(site)}/dashboard/{path}")
        await page.locator(LIVE).wait_for()
        assert await page.evaluate(TOO_WIDE) == [], path
        assert await page.evaluate(OVERLAPS) == [], path
        await page.evaluate(AXE.read_text())
        assert await page.evaluate(SERIOUS) == [], path
    # A user who rents machines needs no hint how a node is installed.
    await expect(page.locator("main")).to_contain_text("Rented machines")
    await expect(page.locator("main")).not_to_contain_text("There are no nodes yet")


async def test_a_large_screen_is_used_by_every_page(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    run_id = await submit(controller, "train")
    await submit(controller, "api", like=SERVICE)
    await submit(controller, "desk", like=DESK)
    await controller.pipeline.save_node(a_node("n1", "Xid 79"), "n1")
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.set_viewport_size({"width": 3840, "height": 2160})
    pages = ("queue", "nodes", "nodes/n1", "services", "dev-environments", "events", "users")
    for path in ("runs", f"runs/{run_id}", *pages):
        await page.goto(f"{address_of(site)}/dashboard/{path}")
        await page.locator(LIVE).wait_for()
        assert await page.evaluate(WIDEST) > 0.7 * 3840, path
        assert await page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") > 16
        await page.evaluate(AXE.read_text())
        assert await page.evaluate(SERIOUS) == [], path
