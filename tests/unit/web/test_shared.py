"""Fragments that many pages ask for at once."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from controller.aio import Flag
from controller.web.shared import MAX_SECONDS, Fragment, SharedFragments
from tests.unit.web.conftest import Browser, submit


class Maker:
    """Makes numbered fragments, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    async def __call__(self) -> Fragment:
        self.made += 1
        number = self.made
        await asyncio.sleep(0)
        return Fragment.of(f"fragment {number}")


def said(fragment: Fragment | None) -> str:
    assert fragment is not None
    return fragment.content.decode()


async def test_pages_that_ask_at_once_share_a_fragment_until_something_changes() -> None:
    changed, make = Flag(), Maker()
    shared = SharedFragments(nullcontext(changed), lambda: 0.0)
    both = await asyncio.gather(shared.get("a", make), shared.get("a", make))
    other = await shared.get("b", make)
    changed.set()
    later = await shared.get("a", make)
    numbers = [said(one) for one in (*both, other, later)]
    assert numbers == ["fragment 1", "fragment 1", "fragment 2", "fragment 3"]


async def test_a_change_while_a_fragment_is_made_makes_the_next_one_anew() -> None:
    changed, make = Flag(), Maker()
    shared = SharedFragments(nullcontext(changed), lambda: 0.0)
    first = asyncio.ensure_future(shared.get("a", make))
    await asyncio.sleep(0)
    changed.set()
    assert said(await shared.get("a", make)) == "fragment 2"
    assert said(await first) == "fragment 1"


async def test_a_fragment_is_shared_for_a_second_at_most() -> None:
    now = [5.0]
    make = Maker()
    shared = SharedFragments(nullcontext(Flag()), lambda: now[0])
    await shared.get("a", make)
    now[0] += MAX_SECONDS
    assert said(await shared.get("a", make)) == "fragment 2"


async def test_each_whole_page_has_a_token_of_its_own(admin: Browser) -> None:
    await submit(admin)
    headers = {"HX-Request": "true", "HX-Target": "nothing", "X-Fairlead-Page": admin.page_token}
    pages = [await admin.client.get("/dashboard/runs", headers=headers) for _ in range(2)]
    own = {(await page.text()).split('"fairlead-page" content="')[1][:81] for page in pages}
    fragment = await admin.fragment("/dashboard/runs", "rows")
    assert len(own) == 2
    assert not any(token in fragment for token in own)
