"""The log viewer, the terminal and a node's page in a real Chromium, with a node that runs jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, Route, WebSocket, expect, sync_playwright

from controller.logs.segments import SegmentWriter
from fairlead.wire.frames import Frame, Stream
from tests.e2e.dashboard.conftest import AXE, LIVE, PATIENCE, SERIOUS
from tests.e2e.runs.visitor import make_key
from tests.support.processes import ControllerProcess, ShimProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

CHROMIUM = "/usr/bin/chromium"
BIG = 100 << 20
LINES = 10_000
expect.set_options(timeout=PATIENCE)
PIXELS_OF = """(canvas, [red, green, blue]) => {
    const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    let found = 0;
    for (let at = 0; at < image.length; at += 4) {
        if (image[at] === red && image[at + 1] === green && image[at + 2] === blue) found += 1;
    }
    return found;
}"""
TROUBLE = r"\033[31mred\033[0m \033]0;title\007<img src=x onerror=alert(1)>"
ROOM_ABOVE = """(plot, [red, green, blue]) => {
    const canvas = plot.querySelector("canvas");
    const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    for (let at = 0; at < image.length; at += 4) {
        if (image[at] !== red || image[at + 1] !== green || image[at + 2] !== blue) continue;
        const row = Math.floor(at / 4 / canvas.width) / devicePixelRatio;
        return row - plot.querySelector(".u-over").offsetTop;
    }
}"""
"""Pixels between a curve and the top of its plot."""
CHATTY = """\
import itertools, time
for number in itertools.count():
    print(f"\\033[32m{number}\\033[0m of a job that prints 350 lines a second", flush=True)
    number % 35 or time.sleep(0.1)
"""
DRAWINGS = """(wanted) => new Promise((done) => {
    const view = document.querySelector("[data-log-part=view]");
    const last = () => Number([...view.querySelectorAll(".log-number")].at(-1).dataset.number);
    const [first, began] = [last(), performance.now()];
    let drawings = 0;
    new MutationObserver(() => {
        drawings += 1;
        if (last() - first >= wanted) done([drawings, (performance.now() - began) / 1000]);
    }).observe(view, {childList: true, subtree: true});
})"""
"""How often the view was drawn until so many lines had come, and in how many seconds."""
COMMANDS = f"""\
commands:
- printf '{TROUBLE}\\n'
- echo to-stderr >&2
- sleep 3600
"""


@dataclass
class Bed:
    controller: ControllerProcess
    shim: ShimProcess

    def run(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.controller.cli("inspect", name, "--json").succeeded().json
        return found

    def apply(self, folder: Path, name: str, text: str, kind: str = "task") -> dict[str, Any]:
        path = folder / f"{name}.yaml"
        path.write_text(f"type: {kind}\nresources: {{cpu: 0.1}}\n{text}")
        self.controller.cli("apply", "-d", "-f", path, "-n", name).succeeded()
        return self.run(name)


@pytest.fixture(scope="module")
def bed(testbed_folder: Path, numbers: Iterator[int]) -> Iterator[Bed]:
    folder = testbed_folder / f"dashboard{next(numbers)}"
    controller = ControllerProcess(folder / "controller", outlasts_tests=True)
    shim = ShimProcess(folder / "node", "process", outlasts_tests=True)
    patch = pytest.MonkeyPatch()
    make_key(folder / "key")
    patch.setenv("FAIRLEAD_SSH_KEY", str(folder / "key"))
    shim.start()
    controller.start()
    made = Bed(controller, shim)
    attributes = ("--attribute", "rack=<img src=x onerror=alert(1)>")
    controller.cli("node", "add", "here", "--local", shim.socket, *attributes).succeeded()
    made.apply(folder, "shown", f"{COMMANDS}ssh: embedded\n")
    wait_until(lambda: made.run("shown")["status"] == "running", what="the job to run")
    yield made
    controller.cli("stop", "shown", "--abort")
    wait_until(lambda: made.run("shown")["finished_at"], what="the job to end")
    patch.undo()
    controller.close()
    shim.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=options, timeout=PATIENCE
        )
        yield started
        started.close()


@pytest.fixture
def page(bed: Bed, browser: Browser) -> Iterator[Page]:
    """A page of an admin who has logged in; a script that fails, or that the policy forbids, fails
    the test."""
    context = browser.new_context(accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    opened = context.new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    opened.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    log_in(opened, bed)
    yield opened
    context.close()
    assert faults == []


@pytest.fixture(scope="module")
def desk(bed: Bed, testbed_folder: Path) -> Iterator[str]:
    """The id of a dev environment that can be opened."""
    found = bed.apply(testbed_folder, "desk", "ide: vscode\n", "dev-environment")
    wait_until(lambda: bed.run("desk")["status"] == "running", what="the desk to run")
    yield found["id"]
    bed.controller.cli("stop", "desk", "--abort")
    wait_until(lambda: bed.run("desk")["finished_at"], what="the desk to end")


def test_a_dev_environment_that_runs_has_the_link_of_its_ide(
    page: Page, bed: Bed, desk: str
) -> None:
    page.goto(f"{bed.controller.url}/dashboard/dev-environments")
    link = page.get_by_role("link", name="Open in vscode")
    expect(link).to_have_attribute("href", re.compile("^vscode://vscode-remote/ssh-remote[+]desk/"))
    expect(link).to_have_css("text-decoration-line", "underline")  # text stands beside it
    page.goto(f"{bed.controller.url}/dashboard/runs/{desk}")
    expect(page.locator("#overview")).to_contain_text("fairlead ssh desk")


def log_in(page: Page, bed: Bed) -> None:
    page.goto(f"{bed.controller.url}/dashboard/login")
    page.fill("#token", bed.controller.token)
    page.click("button")
    page.wait_for_selector("main h1")


def opened(page: Page, bed: Bed, name: str) -> None:
    run = bed.run(name)
    page.goto(f"{bed.controller.url}/dashboard/runs/{run['id']}")
    page.locator(LIVE).wait_for()


def opened_at_its_plots(page: Page, bed: Bed, name: str) -> None:
    """Plots come when the reader is near, and the rows of the log move them away."""
    opened(page, bed, name)
    expect(page.locator(".log-row")).to_have_count(2)
    page.locator("#plots").scroll_into_view_if_needed()


def test_a_live_log_shows_colours_and_streams_and_no_markup(page: Page, bed: Bed) -> None:
    opened(page, bed, "shown")
    view = page.locator("[data-log-part=view]")

    expect(view.locator(".ansi-fg-1")).to_have_text("red")
    expect(view.locator(".log-stdout .log-text")).to_have_text("red <img src=x onerror=alert(1)>")
    expect(view.locator(".log-stderr .log-stream")).to_have_text("stderr")
    expect(page.locator("[data-log-part=follow]")).to_be_checked()
    assert view.locator("img").count() == 0


def test_a_log_that_is_followed_twice_has_one_connection(page: Page, bed: Bed) -> None:
    held: list[Route] = []
    followed: list[WebSocket] = []
    windows = "**/logs/window*"
    page.route(windows, lambda one: held.append(one) if len(held) < 2 else one.continue_())
    page.on("websocket", lambda one: followed.append(one) if "/logs/" in one.url else None)
    with page.expect_request(windows):
        opened(page, bed, "shown")
    follow = page.locator("[data-log-part=follow]")
    with page.expect_request(windows):  # the second, while the first is not answered
        follow.uncheck()
        follow.check()
    expect(follow).to_be_checked()
    for route in held:
        route.continue_()
    expect(page.locator(".log-stdout .log-text")).to_be_visible()

    follow.uncheck()
    page.click("[data-log-part=start]")
    expect(page.locator(".log-stdout .log-text")).to_be_visible()
    for one in followed:
        if not one.is_closed():
            one.wait_for_event("close")
    assert followed


def test_a_time_leads_to_its_rows_and_one_after_all_of_them_to_the_end(
    page: Page, bed: Bed
) -> None:
    opened(page, bed, "shown")
    rows = page.locator("[data-log-part=view] .log-row")
    time, here = page.locator("[data-log-part=time]"), page.locator(".log-here")
    expect(rows).to_have_count(2)
    time.focus()
    first = datetime.fromisoformat(rows.first.locator(".log-time").get_attribute("title") or "")
    assert time.input_value()[:16] == f"{first.astimezone():%Y-%m-%dT%H:%M}"
    time.fill("2020-01-01T00:00:00")
    expect(here).to_have_count(1)
    time.fill("2999-01-01T00:00:00")
    expect(page.locator("#log > [role=status]")).to_contain_text("this is the end")
    expect(rows).to_have_count(2)


def test_the_attempt_whose_log_is_chosen_stands_in_the_address(page: Page, bed: Bed) -> None:
    attempt = bed.run("shown")["jobs"][0]["attempts"][0]["id"]
    opened(page, bed, "shown")
    choice = page.locator("[data-log-part=choice]")
    expect(choice).to_have_value(attempt)
    choice.dispatch_event("change")
    page.wait_for_url(f"**?attempt={attempt}#log")
    page.reload()
    expect(choice).to_have_value(attempt)


def test_a_retry_is_offered_beside_the_log_of_the_attempt_before(
    page: Page, bed: Bed, tmp_path: Path
) -> None:
    fail_once = f"[ -e {tmp_path}/go ] && exec sleep 600; echo failing; exit 1"
    retry = "{on_events: [error], duration: 1h}"
    bed.apply(tmp_path, "again", f"commands: ['{fail_once}']\nretry: {retry}\n")
    opened(page, bed, "again")
    choice, newer = page.locator("[data-log-part=choice]"), page.locator("[data-log-part=newer]")
    expect(page.locator("[data-log-part=view]")).to_contain_text("failing")
    first = choice.input_value()
    (tmp_path / "go").touch()
    expect(newer).to_have_text(re.compile(r"Show main/0, attempt \d+ \(running\)"))
    assert choice.input_value() == first
    newer.click()
    expect(newer).to_be_hidden()
    expect(page.locator("[data-log-part=follow]")).to_be_checked()
    assert choice.input_value() == bed.run("again")["jobs"][0]["attempts"][-1]["id"]
    assert page.locator("[data-terminal-part=job] option").count() == 1
    bed.controller.cli("stop", "again", "--abort").succeeded()


def test_a_log_that_grows_fast_is_drawn_a_few_times_a_second(
    page: Page, bed: Bed, tmp_path: Path
) -> None:
    (tmp_path / "chatty.py").write_text(CHATTY)
    bed.apply(tmp_path, "chatty", f"commands: ['python3 {tmp_path}/chatty.py']\n")
    wait_until(lambda: bed.run("chatty")["status"] == "running", what="the job to run")
    opened(page, bed, "chatty")
    page.locator(".log-row").first.wait_for()

    drawings, seconds = page.evaluate(DRAWINGS, 1000)

    assert drawings <= 2 + 8 * seconds
    page.locator("[data-log-part=view]").hover()
    page.mouse.wheel(0, -2000)
    expect(page.locator("[data-log-part=follow]")).not_to_be_checked()
    bed.controller.cli("stop", "chatty", "--abort").succeeded()


def test_a_big_log_is_scrolled_and_searched_by_windows(
    page: Page, bed: Bed, tmp_path: Path
) -> None:
    run = bed.apply(tmp_path, "big", "commands: ['true']\n")
    wait_until(lambda: bed.run("big")["finished_at"], what="the job to end")
    attempt = run["jobs"][0]["attempts"][0]["id"]
    with ThreadPoolExecutor(1) as other:  # the event loop of Playwright is in this one
        other.submit(_write_big, bed.controller.data / "logs" / attempt[:2] / attempt).result()

    opened(page, bed, "big")
    view = page.locator("[data-log-part=view]")
    expect(view.locator(".log-row").last).to_contain_text("the last line")
    expect(view.locator(".log-row").last.locator(".ansi-fg-5")).to_be_visible()
    page.fill("[data-log-part=search]", "NEEDLE")
    page.press("[data-log-part=search]", "Enter")
    expect(page.locator("[data-log-part=count]")).to_have_text("1 of 1")
    expect(page.locator(".log-here mark")).to_have_text("needle")
    page.click("[data-log-part=start]")
    expect(view.locator(".log-row").first).to_contain_text("line 0 ")
    first = view.locator(".log-number").first
    expect(first).to_have_attribute("data-number", "1")
    for _ in range(20):
        view.evaluate("view => view.scrollBy(0, 20000)")
        page.wait_for_function(
            "view => view.scrollHeight > view.clientHeight", arg=view.element_handle()
        )
    assert view.locator(".log-row").count() < 10_000


def _write_big(folder: Path) -> None:
    writer = SegmentWriter(folder)
    writer.open()
    block = b"".join(b"line %d of a long log\n" % number for number in range(LINES))[: 1 << 20]
    needle = False
    while writer.end < BIG:
        payload = block
        if writer.end > BIG // 2 and not needle:
            needle, payload = True, b"here is the needle\n"
        writer.append([Frame(writer.end, 1, Stream.STDOUT, payload)])
    for payload in (b"\033[35mviolet begins\n", block[: 20 << 10], b"the last line\n"):
        writer.append([Frame(writer.end, 1, Stream.STDOUT, payload)])
    writer.close()


def test_a_pending_reason_tells_a_time_as_the_reader_writes_it(
    browser: Browser, bed: Bed, tmp_path: Path
) -> None:
    bed.apply(tmp_path, "fails", "commands: [exit 1]\nretry: {on_events: [error]}\n")
    context = browser.new_context(locale="de-DE", timezone_id="Asia/Kolkata")
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    log_in(page, bed)
    shown = page.locator("tr", has_text="fails").locator("time.moment")
    shown = shown.filter(has_text=re.compile(r"\d\d:\d\d:\d\d$"))
    retry_at, text = shown.evaluate("one => [one.dateTime, one.textContent]")
    local = datetime.fromisoformat(retry_at).astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert text.endswith(f"{local:%H:%M:%S}")
    context.close()
    bed.controller.cli("stop", "fails", "--abort").succeeded()


def open_terminal(page: Page, bed: Bed) -> None:
    opened(page, bed, "shown")
    page.locator("[data-terminal-part=job] option").first.wait_for(state="attached")
    page.click("[data-terminal-part=open]")
    expect(page.locator("#terminal [role=status]")).to_contain_text("Connected")


def test_a_terminal_runs_what_is_typed(page: Page, bed: Bed) -> None:
    open_terminal(page, bed)
    page.keyboard.type("echo typed-$((40 + 2))")
    page.keyboard.press("Enter")
    expect(page.locator(".xterm-rows")).to_contain_text("typed-42")
    page.keyboard.type("exit 3")
    page.keyboard.press("Enter")
    expect(page.locator("#terminal [role=status]")).to_contain_text("status 3")


def test_a_terminal_has_the_size_of_its_window_and_its_text_can_be_copied(
    page: Page, bed: Bed
) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_terminal(page, bed)
    shown = page.locator(".xterm-rows")

    def columns(name: str) -> int:
        page.keyboard.type(f"echo {name}-$(stty size | cut -d' ' -f2)-")
        page.keyboard.press("Enter")
        expect(shown).to_contain_text(re.compile(rf"{name}-\d+-"))
        found = re.search(rf"{name}-(\d+)-", shown.inner_text())
        assert found is not None
        return int(found[1])

    wide = columns("wide")
    width = page.evaluate("document.querySelector('.xterm-screen').clientWidth")
    page.set_viewport_size({"width": 640, "height": 720})
    # A ResizeObserver hears of it with the next frame, which may come after what is typed.
    page.wait_for_function(
        "width => document.querySelector('.xterm-screen').clientWidth < width", arg=width
    )
    page.locator(".xterm-helper-textarea").focus()
    narrow = columns("narrow")
    assert 40 < narrow < wide

    page.keyboard.type(r"printf '\033[38;2;1;200;3m%s\033[0m\n' tr''ue")
    page.keyboard.press("Enter")
    expect(shown.get_by_text("true", exact=True)).to_have_css("color", "rgb(1, 200, 3)")
    box = shown.get_by_text(f"narrow-{narrow}-", exact=True).last.bounding_box()
    assert box is not None
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.keyboard.press("Control+Shift+KeyC")
    page.wait_for_function("() => navigator.clipboard.readText().then((text) => text.length > 0)")
    assert f"narrow-{narrow}-" in page.evaluate("navigator.clipboard.readText()")
    page.keyboard.press("Control+Shift+Escape")
    expect(page.locator("[data-terminal-part=close]")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".xterm-rows")).to_have_count(0)


def test_plots_draw_a_curve_for_each_job_and_tell_its_latest_value(page: Page, bed: Bed) -> None:
    begin = datetime.now(UTC) - timedelta(minutes=10)

    def job(name: str, factor: float) -> dict[str, Any]:
        points = [
            {
                "at": (begin + timedelta(seconds=15 * at)).isoformat(),
                "cpu": factor * (1 + at % 5),
                "memory": factor * 2**30,
                "gpu_utilization": None,
                "gpu_memory": None,
            }
            for at in range(40)
        ]
        return {"group": name, "cookie": 0, "points": points}

    history = {"jobs": [job("left", 1.0), job("right", 2.0)]}
    page.route("**/metrics/history*", lambda route: route.fulfill(json=history))
    opened_at_its_plots(page, bed, "shown")
    plots = page.locator(".plot")
    expect(plots).to_have_count(2)
    expect(plots.locator("h3")).to_have_text(["CPU cores", "Memory GiB"])
    for colour in ([9, 105, 218], [188, 76, 0]):
        assert plots.first.locator("canvas").evaluate(PIXELS_OF, colour) > 100
    assert plots.first.evaluate(ROOM_ABOVE, [188, 76, 0]) > 5
    plots.first.locator(".u-over").hover()
    time = plots.first.locator(".u-legend .u-value").first
    expect(time).to_have_text(re.compile(r"\d:\d\d:\d\d"))
    page.click("summary:has-text('latest values')")
    cells = page.locator("[data-plots-part=latest] tr").last.locator("td")
    expect(cells).to_have_text(["right/0", "10.00", "2.00", *["\N{EN DASH}"] * 2])


def test_plots_show_each_gpu_of_an_attempt_that_ended_long_ago(page: Page, bed: Bed) -> None:
    asked: list[str] = []
    at = "2020-01-02T03:04:05.000Z"
    used = {"cpu": 3.0, "memory": 2**30, "gpu_utilization": 50.0, "gpu_memory": 2**31}
    gpus = [
        {"uuid": f"GPU-{name}", "points": [{"at": at, "utilization": busy, "memory": 2**30}]}
        for name, busy in (("a", 10.0), ("b", 90.0))
    ]
    job = {"group": "main", "cookie": 0, "points": [{"at": at, **used}], "gpus": gpus}

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(json={"jobs": [job], "until": at})

    page.route("**/metrics/history*", answer)
    opened_at_its_plots(page, bed, "shown")
    choice = page.locator("[data-plots-part=of]")
    attempt = bed.run("shown")["jobs"][0]["attempts"][0]["id"]
    choice.select_option(attempt)
    page.click("summary:has-text('latest values')")
    rows = page.locator("[data-plots-part=latest] tr")
    expect(rows).to_have_count(3)
    none = "\N{EN DASH}"
    expect(rows.nth(2).locator("td")).to_have_text(["GPU 1 (GPU-b)", none, none, "90.00", "1.00"])
    expect(page.locator(".plot h3")).to_have_text(
        ["CPU cores", "Memory GiB", "GPU %", "GPU memory GiB"]
    )
    assert f"attempt={attempt}&gpus=true" in asked[-1]


def test_a_page_goes_on_when_the_controller_was_killed_and_started_again(
    browser: Browser, bed: Bed, tmp_path: Path
) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    log_in(page, bed)
    expect(page.locator("#connection")).to_have_text("live")
    page.evaluate("document.body.dataset.same = 'yes'")
    bed.controller.kill9()
    expect(page.locator("#connection")).to_contain_text("reconnecting")  # and soon, for how long
    bed.controller.start()
    bed.apply(tmp_path, "after-the-kill", "commands: ['true']\n")
    row = page.locator("tr", has_text="after-the-kill")
    expect(row.locator(".status-succeeded")).to_be_visible()
    assert page.evaluate("document.body.dataset.same") == "yes"
    page.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    page: Page, bed: Bed, desk: str, theme: Literal["light", "dark"]
) -> None:
    page.emulate_media(color_scheme=theme)
    pages = ("runs", "nodes", "queue", "services", "dev-environments", "events", "users")
    for name in (*pages, f"runs/{desk}"):
        page.goto(f"{bed.controller.url}/dashboard/{name}")
        if name in ("runs", "nodes"):  # then one of them
            page.click("a[data-row]")
        expect(page.locator("#connection")).to_have_text("live")
        page.evaluate(AXE.read_text())
        assert page.evaluate(SERIOUS) == [], name


def test_a_node_is_cordoned_after_a_question(page: Page, bed: Bed) -> None:
    page.goto(f"{bed.controller.url}/dashboard/nodes")
    page.click("text=here")
    expect(page.locator("#node")).to_contain_text("<img src=x onerror=alert(1)>")
    page.locator(LIVE).wait_for()
    page.fill("[name=reason] >> nth=0", "new disk")
    page.click("text=Cordon")
    page.click("#confirm button[value=yes]")
    expect(page.locator("#node")).to_contain_text("cordoned: new disk")
    assert bed.controller.cli("node", "show", "here", "--json").succeeded().json["cordoned"]
    page.reload()
    page.locator(LIVE).wait_for()
    page.click("text=Uncordon")
    page.click("#confirm button[value=yes]")
    expect(page.locator("#node")).not_to_contain_text("cordoned: new disk")
    expect(page.locator("#node tr", has_text="uncordoned")).to_contain_text("admin asked for it")
