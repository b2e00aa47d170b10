"""Where the proofs of IDEs in the browser run: a controller with one node of the process engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.async_api import Page

from tests.support.processes import ControllerProcess, ShimProcess


@contextmanager
def controller_with_a_node(folder: Path, *options: str | Path) -> Iterator[ControllerProcess]:
    with ExitStack() as stack:
        shim = ShimProcess(folder / "n", "process")
        stack.callback(shim.close)
        controller = ControllerProcess(folder / "controller", *options)
        stack.callback(controller.close)
        shim.start()
        controller.start()
        controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
        yield controller


async def open_logged_in(page: Page, controller: ControllerProcess, name: str, there: str) -> None:
    """Log in at the dashboard and open this path of a service. Raises playwright's TimeoutError."""
    await page.goto(f"{controller.url}/dashboard/login")
    await page.fill("input[name=token]", controller.token)
    await page.click("button")
    await page.wait_for_url("**/dashboard/runs")
    await page.goto(f"{controller.url}/dashboard/open/{name}?next={quote(there)}")
