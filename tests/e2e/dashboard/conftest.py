"""A real browser on the dashboard of a controller without nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, async_playwright

from controller.service.login_links import LoginLinks
from tests.unit.api.conftest import Controller
from tests.unit.web.conftest import controller, site

__all__ = ["controller", "site"]

CHROMIUM = "/usr/bin/chromium"


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        await browser.close()


async def visit(chromium: Browser, controller: Controller, address: str, user: str) -> Page:
    """Open the dashboard by a one-time link, as this user, in a browser of its own."""
    gate = controller.service.gate
    token = next(one for one in gate.tokens if one.user == user)
    links: LoginLinks = controller.service.login_links
    context = await chromium.new_context()
    page = await context.new_page()
    page.set_default_timeout(10_000)
    await page.goto(f"{address}/dashboard/enter/{links.make(token).code}")
    await page.locator('#connection[data-state="live"]').wait_for()
    return page
