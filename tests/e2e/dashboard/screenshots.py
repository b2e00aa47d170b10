"""`./dev screenshots`: pictures of the main pages for README and docs, of a real node's runs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from pathlib import Path

from playwright.async_api import Page, async_playwright

from examples.demo import BIN, Engine, fairlead, started
from tests.e2e.dashboard.conftest import CHROMIUM

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
TRAIN = """type: task
name: train-llm
commands:
- |
  echo loading the data
  for step in $(seq 1 400); do
    printf '\\033[2mstep %3d\\033[0m  loss \\033[32m2.%03d\\033[0m\\n' $step $((980 - step * 2))
    [ $((step % 40)) = 28 ] && sleep 0.1 && echo "a slow batch: 2.1 s" >&2 && sleep 0.1
  done
  sleep 600
groups: [{name: trainer, nodes: 2, share_nodes: true, resources: {cpu: 0.5}}]
"""
EVAL = "type: task\nname: evaluate\ncommands: [echo accuracy 0.93]\nresources: {cpu: 0.1}\n"
BROKEN = "type: task\nname: convert-data\ncommands: [exit 3]\nresources: {cpu: 0.1}\n"
SWEEP = """type: task
name: sweep-lr
band: batch
commands: [sleep 60]
resources: {cpu: 2}
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="fairlead-pictures-") as name:
        folder = Path(name)
        with started(Engine("process", None, ""), folder) as (socket, env):
            fairlead("node", "add", "gpu-box", "--local", str(socket), env=env)
            for number, (text, options) in enumerate(
                ((EVAL, ()), (BROKEN, ()), (TRAIN, ("-d",)), (SWEEP, ("-d",)))
            ):
                path = folder / f"{number}.yaml"
                path.write_text(text)
                fairlead("apply", "-f", str(path), *options, env=env)
            asyncio.run(_pictures(_link(env)))
    print(json.dumps({path.name: path.stat().st_size for path in sorted(PICTURES.iterdir())}))


def _link(env: dict[str, str]) -> str:
    command = [str(BIN / "fairlead"), "dashboard", "--print"]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


async def _pictures(link: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = await browser.new_page(viewport={"width": 1200, "height": 640})
        await page.goto(link.strip())
        await page.locator("tr", has_text="train-llm").locator(".status-running").wait_for()
        await _picture(page, "runs")
        await page.get_by_role("link", name="train-llm").click()
        await page.locator('#connection[data-state="live"]').wait_for()
        await _picture(page, "run")
        await page.emulate_media(color_scheme="dark")
        await _picture(page, "run-dark")
        await page.locator("#log").get_by_text("step 400").wait_for()
        await page.locator("#log").screenshot(path=PICTURES / "log.png")
        await browser.close()


async def _picture(page: Page, name: str) -> None:
    await page.screenshot(path=PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
