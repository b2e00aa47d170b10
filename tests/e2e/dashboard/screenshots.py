"""`./dev screenshots`: pictures of the main pages for README and docs."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from tests.e2e.dashboard.cluster import busy_cluster
from tests.e2e.dashboard.conftest import CHROMIUM
from tests.support.processes import ControllerProcess

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
SIZE: ViewportSize = {"width": 1200, "height": 640}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fairlead-pictures-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with busy_cluster(folder) as controller, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport=SIZE, device_scale_factor=1.5)
            take_all(page, controller)
            take_sweep(page, controller, folder)
            browser.close()
    print(json.dumps({path.name: path.stat().st_size for path in sorted(PICTURES.iterdir())}))


def take_all(page: Page, controller: ControllerProcess) -> None:
    page.goto(controller.cli("dashboard", "--print").succeeded().output.strip())
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("tr", has_text="sweep-lr")).to_contain_text("place 3 in the queue")
    take(page, "runs")
    for name in ("nodes", "queue"):
        page.goto(f"{controller.url}/dashboard/{name}")
        take(page, name)
    page.goto(f"{controller.url}/dashboard/runs")
    page.get_by_role("link", name="train-llm").click()
    take(page, "run")
    page.locator("#plots").scroll_into_view_if_needed()  # they come when the reader is near
    expect(page.locator("[data-plots-part=plots] canvas").first).to_be_visible()
    page.emulate_media(color_scheme="dark")
    page.locator("#plots").screenshot(path=PICTURES / "use.png")
    page.locator("#log").get_by_text("step 18400").wait_for()
    page.locator("#log").screenshot(path=PICTURES / "log.png")


SWEEP = """
type: task
name: lrs
commands:
  - test "$FAIRLEAD_PARAM_SET" -lt 7 || sleep 600
  - sleep 0.${{ params.seed }}; test "$FAIRLEAD_PARAM_SEED$FAIRLEAD_PARAM_LR" != 20.001
resources: {cpu: 0.05, memory: 100MB}
sweep: {matrix: {model: [small, large], lr: [1e-3, 3e-4], seed: 0..2}, max_parallel: 3}
"""


def take_sweep(page: Page, controller: ControllerProcess, folder: Path) -> None:
    """The table of a sweep's sets: done, failed, active and waiting ones."""
    file = folder / "lrs.yaml"
    file.write_text(SWEEP)
    controller.cli("apply", "-d", "-f", file).succeeded()
    try:
        page.emulate_media(color_scheme="light")
        page.goto(f"{controller.url}/dashboard/runs/lrs")
        table = page.locator("#jobs")
        expect(table).to_contain_text("failed")
        expect(table).to_contain_text("active")
        table.screenshot(path=PICTURES / "sweep.png")
    finally:
        controller.cli("stop", "lrs", "--abort")


def take(page: Page, name: str) -> None:
    """A picture of what the window shows, once the page is live."""
    page.locator('#connection[data-state="live"]').wait_for()
    page.screenshot(path=PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
