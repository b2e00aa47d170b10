"""What a new user copies from the pages runs, without an image where no Docker is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, end_processes_that_mention, run
from tests.support.page_examples import examples, play
from tests.support.processes import ControllerProcess
from tests.support.testbed import ControllerFactory, ShimFactory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

PROJECT = Path(__file__).parents[2]
FIRST_LINES = {
    "README.md": "epoch 3 of 3",
    "docs/quickstart.md": "hello from first",
    "docs/configuration.md": "epoch 3 of 3",
}


TRAIN = """
import os
epochs = os.environ["EPOCHS"]
for epoch in range(int(epochs)):
    print("epoch", epoch + 1, "of", epochs)
"""


def make_project(folder: Path) -> None:
    """A user's git repository with a program that is not committed yet."""
    (folder / "train.py").write_text(TRAIN)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", folder, *command], check=True)


def without_image(job: str) -> str:
    """As the quickstart says for a node without Docker."""
    kept, found = re.subn(r"^image: .*\n", "", job, flags=re.MULTILINE)
    assert found == 1
    return kept


@pytest.fixture
def controller(
    controller_process: ControllerFactory, shim_process: ShimFactory
) -> ControllerProcess:
    controller, shim = controller_process(), shim_process("process")
    controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
    return controller


WITH_EXAMPLES = [
    str(page.relative_to(PROJECT))
    for page in sorted((PROJECT / "docs").rglob("*.md"))
    if examples(page.read_text())
]


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_the_examples_of_the_page_that_are_marked_run(
    controller: ControllerProcess, tmp_path: Path, page: str
) -> None:
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"])
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**controller.env, "FAIRLEAD_SSH_KEY": str(tmp_path / "key"), "PATH": programs}
    play((PROJECT / page).read_text(), tmp_path, env)


@pytest.mark.parametrize("page", FIRST_LINES)
def test_the_first_yaml_of_the_page_runs(
    controller: ControllerProcess, tmp_path: Path, page: str
) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL)
    make_project(tmp_path)
    file = tmp_path / "job.yaml"
    first = next(block for block in blocks if re.search(r"^type:", block, re.MULTILINE))
    file.write_text(without_image(first))
    applied = controller.cli("apply", "-f", file).succeeded()
    assert FIRST_LINES[page] in applied.output


def test_the_quickstart_goes_on_without_docker(
    controller_process: ControllerFactory,
    testbed_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the command that the page gives for that."""
    node = testbed_folder / "quickstart"
    page = (PROJECT / "docs/quickstart.md").read_text()
    (command,) = re.findall(r"^fairlead-shim .*--engine process$", page, re.MULTILINE)
    (job,) = re.findall(r"```yaml\n(# first.yaml\n.*?)```", page, re.DOTALL)
    job = without_image(job).replace("resources:", "  - sleep 1800\nresources:")
    (tmp_path / "first.yaml").write_text(job)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"])
    monkeypatch.setenv("FAIRLEAD_SSH_KEY", str(tmp_path / "key"))
    controller, socket = controller_process(), node / "shim.sock"
    words = command.replace("/var/lib/fairlead", str(node / "data"))
    program, *options = words.replace("/run/fairlead/shim.sock", str(socket)).split()
    argv = [Path(sys.executable).with_name(program), *options]
    shim = Daemon(argv, tmp_path / "log", env={"DOCKER_HOST": "unix:///nonexistent"})
    shim.spawn()
    try:
        shim.wait_ready(socket.exists)
        controller.cli("node", "add", "here", "--local", socket).succeeded()
        controller.cli("apply", "-f", tmp_path / "first.yaml", "-d").succeeded()
        shown = partial(controller.cli, "logs", "first")
        wait_until(lambda: "step 3" in shown().output, what="the job's output")
        assert controller.cli("ssh", "first", "--", "echo in").succeeded().output == "in\n"
        controller.cli("stop", "first", "--abort").succeeded()
        ended = partial(controller.cli, "ps", "--all", "--json")
        wait_until(lambda: '"terminated"' in ended().output, what="the end of the run")
    finally:
        shim.kill9()
        end_processes_that_mention(f"{node}/")
