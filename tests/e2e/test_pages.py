"""The first YAML of each page that a new user copies runs as it stands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import ControllerProcess
from tests.support.testbed import ControllerFactory, ShimFactory

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


@pytest.fixture
def controller(
    controller_process: ControllerFactory, shim_process: ShimFactory
) -> ControllerProcess:
    controller, shim = controller_process(), shim_process("process")
    controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
    return controller


@pytest.mark.parametrize("page", FIRST_LINES)
def test_the_first_yaml_of_the_page_runs(
    controller: ControllerProcess, tmp_path: Path, page: str
) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL)
    make_project(tmp_path)
    file = tmp_path / "job.yaml"
    file.write_text(next(block for block in blocks if re.search(r"^type:", block, re.MULTILINE)))
    applied = controller.cli("apply", "-f", file).succeeded()
    assert FIRST_LINES[page] in applied.output
