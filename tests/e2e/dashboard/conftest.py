"""A real browser on the dashboard of a controller without nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from controller.service.accounts.login_links import LoginLinks
from tests.support.waiting import LONG
from tests.unit.api.conftest import Controller
from tests.unit.web.conftest import controller, site

__all__ = ["controller", "site"]

CHROMIUM = "/usr/bin/chromium"
PATIENCE = 1000 * LONG
"""Milliseconds that a page may take: it says when a page is stuck, not whether it is fast."""

expect.set_options(timeout=PATIENCE)
LIVE = '#connection[data-state="live"]'
"""It appears when the page's scripts have begun: a click or key before that is lost."""
AXE = Path(__file__).parents[3] / ".build/npm/node_modules/axe-core/axe.min.js"
SERIOUS = """async () => {
    const found = await axe.run();
    return found.violations
        .filter((one) => ["serious", "critical"].includes(one.impact))
        .map((one) => [one.id, one.nodes[0].html.slice(0, 200)]);
}"""
"""The rest of what axe found would take the test a second to read."""


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE
        )
        yield browser
        await browser.close()


async def visit(chromium: Browser, controller: Controller, address: str, user: str) -> Page:
    """Open the dashboard by a one-time link, as this user, in a browser of its own."""
    gate = controller.service.accounts.gate
    token = next(one for one in gate.tokens if one.user == user)
    links: LoginLinks = controller.service.accounts.login_links
    context = await chromium.new_context()
    page = await context.new_page()
    page.set_default_timeout(PATIENCE)
    await page.goto(f"{address}/dashboard/enter#{links.make(token).code}")
    await page.get_by_role("button", name="Log in").click()
    await page.locator(LIVE).wait_for()
    return page
