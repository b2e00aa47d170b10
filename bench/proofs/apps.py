"""Apps with pages of their own work at a service's own origin, after a login at the dashboard:
Streamlit, Gradio, TensorBoard, and a page that streams from an API as OpenAI's clients do.

They come from pip into an environment of their own, unless `--venv` names one that has them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from playwright.async_api import Page, async_playwright

from bench.proofs._desk import controller_with_a_node, open_logged_in
from bench.proofs._table import conclude
from tests.support.processes import ControllerProcess
from tests.support.ssh_daemon import free_port
from tests.support.waiting import eventually

_DEADLINE = 120.0
_STREAMLIT = """
import streamlit as st
if st.button("Press"):
    st.write(f"pressed {6 * 7}")
"""
_GRADIO = """
import sys
import gradio as gr
gr.Interface(fn=lambda name: f"hello {name}", inputs="text", outputs="text").launch(
    server_name="127.0.0.1", server_port=int(sys.argv[1])
)
"""
_SCALARS = """
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
for step in range(5):
    value = Summary.Value(tag="loss", simple_value=1.0 / (step + 1))
    writer.add_event(Event(step=step, wall_time=step, summary=Summary(value=[value])))
writer.close()
"""
_STREAM = """
import sys
from aiohttp import web
PAGE = '''<!doctype html><title>chat</title><p id=said></p><script>
(async () => {
  const body = JSON.stringify({model: "m", stream: true, messages: []});
  const headers = {"Content-Type": "application/json"};
  const answer = await fetch("/v1/chat/completions", {method: "POST", headers, body});
  const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await text.read(); !part.done; part = await text.read())
    document.getElementById("said").textContent += part.value;
})();
</script>'''
async def page(request):
    return web.Response(text=PAGE, content_type="text/html")
async def chat(request):
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for word in ("one", "two", "[DONE]"):
        await answer.write(f"data: {word}\\n\\n".encode())
    return answer
app = web.Application()
app.router.add_get("/", page)
app.router.add_post("/v1/chat/completions", chat)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""


class App(msgspec.Struct, frozen=True, kw_only=True):
    """`command`: a shell line with {python}, {folder} and {port}. `use`: uses the app's page as a
    person does, and raises playwright's TimeoutError where it does not work."""

    name: str
    command: str
    use: Callable[[Page], Awaitable[None]]


async def _press(page: Page) -> None:
    await page.get_by_role("button", name="Press").click()
    await page.get_by_text("pressed 42").wait_for()


async def _greet(page: Page) -> None:
    await page.locator("textarea").first.fill("ada")
    await page.get_by_role("button", name="Submit").click()
    await page.wait_for_function(
        "[...document.querySelectorAll('textarea')].some((one) => one.value === 'hello ada')"
    )


async def _plot(page: Page) -> None:
    await page.get_by_text("loss").first.wait_for()


async def _chat(page: Page) -> None:
    await page.get_by_text("[DONE]").wait_for()


APPS = (
    App(
        name="streamlit",
        command="{python} -m streamlit run {folder}/pressed.py --server.port {port}"
        " --server.address 127.0.0.1 --server.headless true --browser.gatherUsageStats false",
        use=_press,
    ),
    App(name="gradio", command="{python} {folder}/greeting.py {port}", use=_greet),
    App(
        name="tensorboard",
        command="{python} {folder}/scalars.py {folder}/scalars && {python} -m tensorboard.main"
        " --logdir {folder}/scalars --host 127.0.0.1 --port {port}",
        use=_plot,
    ),
    App(name="chat", command=f"{sys.executable} {{folder}}/stream.py {{port}}", use=_chat),
)
_PACKAGES = ("streamlit", "gradio", "tensorboard", "setuptools<81")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("needs Chromium in PATH")
    folder = Path(tempfile.mkdtemp(prefix="fl-apps-", dir="/tmp"))
    try:
        venv = given.venv or _with_apps(folder / "venv")
        _write(folder)
        with controller_with_a_node(folder) as controller:
            figures, broken = asyncio.run(_prove(controller, folder, venv, chromium))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    conclude("apps at a service's own origin, in Chromium", figures, broken)


def _with_apps(venv: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "--quiet", *_PACKAGES], check=True)
    return venv


def _write(folder: Path) -> None:
    for name, text in (
        ("pressed.py", _STREAMLIT),
        ("greeting.py", _GRADIO),
        ("scalars.py", _SCALARS),
        ("stream.py", _STREAM),
    ):
        (folder / name).write_text(text)


async def _prove(
    controller: ControllerProcess, folder: Path, venv: Path, chromium: str
) -> tuple[list[tuple[str, object]], list[str]]:
    figures, broken = list[tuple[str, object]](), list[str]()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for app in APPS:
            await asyncio.to_thread(_serve, controller, folder, venv, app)
            begin = time.perf_counter()
            page = await browser.new_page()
            page.set_default_timeout(1000 * _DEADLINE)
            await eventually(lambda: _is_ready(controller, app), _DEADLINE, app.name)  # noqa: B023
            try:
                await open_logged_in(page, controller, app.name, "/")
                await app.use(page)
            except Exception as error:
                broken.append(f"{app.name}: {error} at {page.url}")
            figures.append((app.name, f"{time.perf_counter() - begin:.1f} s"))
            controller.cli("stop", app.name, "--abort").succeeded()
            await page.close()
        await browser.close()
    return figures, broken


def _serve(controller: ControllerProcess, folder: Path, venv: Path, app: App) -> None:
    port = free_port()
    command = app.command.format(python=venv / "bin/python", folder=folder, port=port)
    written = {
        "type": "service",
        "name": app.name,
        "port": port,
        "commands": [command],
        "env": {"HOME": str(folder), "GRADIO_ANALYTICS_ENABLED": "False"},
        "resources": {"cpu": 0.5, "memory": "512MiB"},
    }
    file = folder / f"{app.name}.yaml"
    file.write_text(json.dumps(written))
    controller.cli("apply", "-d", "-f", file).succeeded()


def _is_ready(controller: ControllerProcess, app: App) -> bool:
    shown = json.loads(controller.cli("service", "show", app.name, "--json").succeeded().output)
    return any(one["registered_at"] for one in shown["replicas"])


if __name__ == "__main__":
    main()
