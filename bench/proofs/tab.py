"""A tab that shows a log of 1 GiB stays small: the log is scrolled, jumped through and searched,
and the memory of the tab's process is measured all the time, beside that of an empty tab.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path

import psutil
from playwright.sync_api import Page, expect, sync_playwright

from bench.proofs._table import conclude
from controller.logs.segments import SegmentWriter
from fairlead.wire.frames import Frame, Stream
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.waiting import wait_until

CHROMIUM = "/usr/bin/chromium"
MIB = 1 << 20
MAX_MIB = 286.0
"""300 MB."""
_LINES = 10_000
_LIMIT_MS = 300_000.0


class Tab:
    """The process of the only tab: the largest renderer, as Chromium keeps a spare one."""

    def __init__(self) -> None:
        self.most = 0.0

    def _process(self) -> psutil.Process:
        return max(_renderers(), key=lambda one: one.memory_info().rss)

    def rss(self) -> float:
        """Return MiB that the process holds now; most of the floor are pages of the program itself,
        which all tabs share."""
        now: float = self._process().memory_info().rss / MIB
        self.most = max(self.most, now)
        return now

    def own(self) -> float:
        """Return the MiB that no other process shares."""
        return float(self._process().memory_full_info().uss) / MIB


def _renderers() -> list[psutil.Process]:
    every = psutil.Process().children(recursive=True)
    return [one for one in every if "--type=renderer" in one.cmdline()]


def write_log(folder: Path, size: int) -> None:
    """Write a log of short, coloured lines, with one needle in its middle."""
    writer = SegmentWriter(folder)
    writer.open()
    line = b"\033[3%dm%d\033[0m a line of a long log\n"
    block = b"".join(line % (1 + number % 6, number) for number in range(_LINES))[:MIB]
    while writer.end < size:
        if size // 2 <= writer.end < size // 2 + len(block):
            writer.append([Frame(writer.end, 1, Stream.STDOUT, b"here is the needle\n")])
        writer.append([Frame(writer.end, 1, Stream.STDOUT, block)])
    writer.close()


def read_it(page: Page, tab: Tab, steps: int) -> None:
    """Open the log's end, scroll up and down, jump, and search the whole."""
    view = page.locator("[data-log-part=view]")
    view.locator(".log-row").first.wait_for()
    for step in range(steps):
        view.evaluate("(view, by) => view.scrollBy(0, by)", -9000 if step % 4 else 7000)
        page.wait_for_timeout(30)
        tab.rss()
    for step in range(steps):
        page.locator("[data-log-part=place]").evaluate(
            "(place, share) => { place.value = place.max * share; "
            "place.dispatchEvent(new Event('change')); }",
            (step * 37 % 100) / 100,
        )
        page.wait_for_timeout(100)
        tab.rss()
    page.fill("[data-log-part=search]", "NEEDLE")
    page.press("[data-log-part=search]", "Enter")
    expect(page.locator("[data-log-part=count]")).to_have_text("1 of 1", timeout=_LIMIT_MS)
    tab.rss()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024, metavar="N", help="of log")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="scrolls, and jumps")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-tab-")))
        controller = ControllerProcess(folder / "controller")
        shim = ShimProcess(folder / "node", "process")
        stack.callback(shim.close)
        stack.callback(controller.close)
        shim.start()
        controller.start()
        address = _with_log(controller, shim, folder, given.mebibytes * MIB)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        stack.callback(browser.close)
        page, tab = browser.new_page(), Tab()
        page.set_default_timeout(_LIMIT_MS)
        page.goto(f"{controller.url}/dashboard/login")
        empty = tab.rss()
        page.fill("#token", controller.token)
        page.click("button")
        page.wait_for_selector("main h1")
        page.goto(address)
        page.wait_for_selector("[data-log-part=view] .log-row")
        opened = tab.rss()
        read_it(page, tab, given.steps)
        own = tab.own()
    figures = (
        ("the form of the login in a new tab", f"{empty:.0f} MiB"),
        ("the end of the log is shown", f"{opened:.0f} MiB"),
        (
            f"scrolled, jumped and searched: the most (promised: < {MAX_MIB:.0f})",
            f"{tab.most:.0f} MiB",
        ),
        ("... of it not shared with other tabs, at the end", f"{own:.0f} MiB"),
    )
    broken = [f"the tab held {tab.most:.0f} MiB"] if tab.most >= MAX_MIB else []
    conclude(f"RSS of a tab with a log of {given.mebibytes} MiB", figures, broken)


def _with_log(controller: ControllerProcess, shim: ShimProcess, folder: Path, size: int) -> str:
    """Give an ended run this log, and return the address of its page."""
    controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
    file = folder / "run.yaml"
    file.write_text("type: task\nname: big\ncommands: ['true']\n")
    controller.cli("apply", "-d", "-f", file).succeeded()

    def run() -> dict[str, object]:
        found: dict[str, object] = controller.cli("inspect", "big", "--json").succeeded().json
        return found

    wait_until(lambda: run()["finished_at"] is not None, what="the job to end")
    made = controller.cli("inspect", "big", "--json").succeeded().json
    attempt = made["jobs"][0]["attempts"][0]["id"]
    write_log(controller.data / "logs" / attempt[:2] / attempt, size)
    return f"{controller.url}/dashboard/runs/{made['id']}"


if __name__ == "__main__":
    main()
