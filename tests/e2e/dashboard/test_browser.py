"""The dashboard in Chromium: its scripts, its stream, its keys, and what a screen reader meets."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser, expect

from controller.api.app import make_app
from controller.service.submissions import Submission
from controller.web.app import Dashboard, session_key
from tests.e2e.dashboard.conftest import AXE, SERIOUS, visit
from tests.unit.api.conftest import Controller

pytestmark = pytest.mark.e2e

HELLO = {"type": "task", "commands": ["true"]}


async def submit(controller: Controller, name: str, user: str = "admin") -> str:
    service = controller.service
    submission = Submission(configuration={**HELLO, "name": name})
    submitted = await service.submissions.submit(submission, user=service.gate.users[user])
    return submitted.state.run.id


def address_of(site: TestServer) -> str:
    return str(site.make_url("")).rstrip("/")


async def serve(controller: Controller, port: int) -> TestServer:
    dashboard = Dashboard(controller.service, session_key(b"secret of the tests"), lambda: 0.0)
    started = TestServer(make_app(controller.service, mounts=(dashboard.mount,)), port=port)
    await started.start_server()
    return started


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

    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator("#confirm")).to_contain_text("Stop train?")
    await page.get_by_role("button", name="Yes").click()
    await expect(page.locator("#toasts")).to_contain_text("stop was requested")
    await expect(page.locator(".status-line")).to_contain_text("terminated")
    await expect(page.locator("#overview .status-killed").first).to_be_visible()
    assert errors == []


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


async def test_an_open_page_goes_on_after_a_restart_of_the_controller(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.evaluate("document.body.dataset.same = 'yes'")
    port = site.port
    assert port is not None

    await site.close()
    await expect(page.locator("#connection")).to_have_text("reconnecting")
    again = await serve(controller, port)
    await submit(controller, "after")

    await expect(page.get_by_role("link", name="after")).to_be_visible()
    assert await page.evaluate("document.body.dataset.same") == "yes"
    await page.context.close()
    await again.close()


async def test_keys_search_and_back_work_without_a_mouse(
    chromium: Browser, controller: Controller, site: TestServer
) -> None:
    for name in ("alpha", "beta"):
        await submit(controller, name)
    page = await visit(chromium, controller, address_of(site), "admin")

    await page.keyboard.press("/")
    await page.keyboard.type("alph")
    await expect(page.get_by_role("link", name="beta")).to_have_count(0)
    assert "text=alph" in page.url
    await page.locator("#main").focus()
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="alpha")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_label("Name", exact=True)).to_have_value("alph")
    await page.locator("#main").focus()
    await page.keyboard.press("g")
    await page.keyboard.press("r")
    await expect(page.get_by_role("link", name="beta")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_serious(
    chromium: Browser, controller: Controller, site: TestServer, theme: str
) -> None:
    run_id = await submit(controller, "train")
    page = await visit(chromium, controller, address_of(site), "admin")
    await page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    for path in ("/dashboard/runs", f"/dashboard/runs/{run_id}", "/dashboard/login"):
        await page.goto(address_of(site) + path)
        await page.evaluate(AXE.read_text())
        assert await page.evaluate(SERIOUS) == [], path
    await page.set_viewport_size({"width": 360, "height": 700})
    await page.goto(f"{address_of(site)}/dashboard/runs")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
