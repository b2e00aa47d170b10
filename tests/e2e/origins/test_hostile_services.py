"""A page of a hostile service becomes nobody: in no mode that an operator can choose."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from controller.clock import SystemClock
from controller.forwarding.reads import Reads
from tests.e2e.origins.bed import MODES, SECRET, Bed, Certificate, Mode, hostile, unprotected
from tests.e2e.origins.browsers import FIREFOX, Open, Tab, chromium, firefox
from tests.e2e.origins.follower import Front
from tests.support.waiting import LONG, eventually
from tests.unit.api.conftest import ADMIN_TOKEN, Controller
from tests.unit.forwarding.test_reads import opened_bed

pytestmark = pytest.mark.e2e

BROWSERS: dict[str, Open] = {"chromium": chromium}
if "CI" in os.environ or Path(FIREFOX).exists():
    BROWSERS["firefox"] = firefox
LOG_IN = """(() => {
  const token = document.querySelector("input[name=token]");
  token.value = TOKEN;
  setTimeout(() => token.form.requestSubmit());
})()"""
"""The answer comes before the page that gives it is left."""
EVIL = "document.scripts[0].textContent.includes('What a hostile page tries') && 'it is there'"
ICON = "/favicon.ico"
"""Browsers ask for it for the visitor's own page, late."""
DASHBOARD = "/dashboard/runs"
AT_A_FOLLOWER = "tls, services on sibling hosts"
"""The hosts that a page can do the most to."""
USER = """document.querySelector('meta[name=fairlead-page]') && document.readyState !== 'loading'
  && document.body.innerText"""
"""A page that is half read has its head, and rows of its table are missing."""


async def log_in(tab: Tab, bed: Bed) -> None:
    await tab.go(f"{bed.origin}/dashboard/login")
    await tab.do(LOG_IN.replace("TOKEN", repr(ADMIN_TOKEN)))
    assert SECRET in await shown(tab, USER)


async def shown(tab: Tab, script: str) -> str:
    """Return what the page has, once it has something; a page that is left refuses scripts."""

    async def once() -> Any:
        try:
            return await tab.do(script)
        except Exception:
            return None

    found: str = await eventually(once, LONG, script)
    return found


async def open_service(tab: Tab, bed: Bed, name: str, sign: str) -> None:
    """Open a service as its page on the dashboard does, and wait for it."""
    if bed.mode.has_own_origins:
        await tab.go(f"{bed.origin}/dashboard/open/{name}")
        await shown(tab, sign)
    else:  # no driver can ask a page that runs no scripts
        await tab.set_off(f"{bed.service(name)}/")
        await eventually(lambda: any(one.path.endswith("/end") for one in bed.evil))


async def loot_of(controller: Controller, bed: Bed, tab: Tab) -> str:
    """Let the hostile page attack its visitor, who has logged in and has the notes open. Return all
    that it got and reported."""
    await log_in(tab, bed)
    before = controller.service.accounts.gate.tokens
    if bed.mode.has_own_origins:
        await open_service(tab, bed, "notes", "document.getElementById('notes').innerText")
    known = len(bed.notes)
    await open_service(tab, bed, "evil", EVIL)
    if bed.mode.has_own_origins:
        await shown(tab, "typeof window.attacked === 'object' && 'it runs'")
        outcomes = await tab.do("window.attacked")
        assert {name: one for name, one in outcomes.items() if one != "nothing"} == {}
        assert len(outcomes) == 27
    reached = [one.method for one in bed.notes[known:] if one.path != ICON]
    assert set(reached) == set(bed.mode.reached)
    assert controller.service.accounts.gate.tokens == before
    await tab.go(f"{bed.origin}/dashboard/runs")
    assert SECRET in await shown(tab, USER)
    ran = [one for one in bed.evil if one.path.endswith("/ran")]
    assert bool(ran) is bed.mode.has_own_origins
    return "\n".join(bed.stolen + bed.reports)


@pytest.mark.parametrize(
    ("mode", "browser"),
    [
        (mode, browser)
        for mode in MODES
        for browser in BROWSERS
        # Firefox' driver hangs at times when it leaves a page of an opaque origin.
        if MODES[mode].has_own_origins or browser == "chromium"
    ],
)
async def test_a_hostile_page_gets_nothing_of_its_visitor(
    controller: Controller, tmp_path: Path, mode: str, browser: str
) -> None:
    certificate, run = Certificate(tmp_path), BROWSERS[browser]
    async with (
        hostile(controller, MODES[mode], certificate) as bed,
        run(tmp_path / "profile", certificate) as tab,
    ):
        assert SECRET not in await loot_of(controller, bed, tab)


async def test_at_a_follower_that_knows_browsers_by_sealed_cookies_it_gets_nothing_either(
    tmp_path: Path,
) -> None:
    certificate = Certificate(tmp_path)
    async with opened_bed(tmp_path, lambda reader: Reads(reader, SystemClock())) as shared:
        front = Front(shared.reader, tmp_path)
        async with (
            hostile(shared.controller, MODES[AT_A_FOLLOWER], certificate, front) as bed,
            chromium(tmp_path / "profile", certificate) as tab,
        ):
            assert SECRET not in await loot_of(shared.controller, bed, tab)
        # It is the follower itself that let the visitor in.
        assert {"notes", "evil"} <= set(front.carried)


@pytest.mark.parametrize("browser", BROWSERS)
async def test_the_bed_sees_an_origin_that_is_not_confined(
    controller: Controller, tmp_path: Path, browser: str
) -> None:
    """The same page beside a dashboard that everybody may read, on one origin without a proxy:
    what the other tests look for is found."""
    certificate, run = Certificate(tmp_path), BROWSERS[browser]
    mode = Mode(host="fairlead.test", is_encrypted=True)
    async with (
        unprotected(mode, certificate) as bed,
        run(tmp_path / "profile", certificate) as tab,
    ):
        await tab.go(f"{bed.service('evil')}/")
        outcomes = await tab.do("window.attacked")
        found = {name for name, one in outcomes.items() if one != "nothing"}
        assert found >= {
            "read the dashboard",
            "frame the dashboard",
            "a worker over the dashboard",
            "read storage of the dashboard",
        }
        assert {one.method for one in bed.notes} >= {"GET", "POST"}
        assert SECRET in "\n".join(bed.stolen)
        if browser == "chromium":  # Firefox has no network error logging
            await eventually(lambda: any(DASHBOARD in one for one in bed.reports), LONG, "a report")


async def test_over_a_plain_connection_nobody_logs_in(
    controller: Controller, tmp_path: Path
) -> None:
    certificate, mode = Certificate(tmp_path), Mode(host="fairlead.test")
    async with (
        hostile(controller, mode, certificate) as bed,
        chromium(tmp_path / "profile", certificate) as tab,
    ):
        await tab.go(f"{bed.origin}/dashboard/login")
        said = await tab.do("document.body.innerText")
        assert "it is not encrypted" in said
        assert "ssh -L 8700:localhost:8700" in said
        assert await tab.do("document.querySelectorAll('input').length") == 0
