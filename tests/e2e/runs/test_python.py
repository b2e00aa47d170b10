"""Programs with the Python client: the examples, as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.python import tune
from fairlead import Client, Task
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e
EXAMPLES = Path(__file__).parents[3] / "examples" / "python"


def _program(lab: RunLab, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / name, lab.image],
        env={**os.environ, **lab.controller.env},
        capture_output=True,
        text=True,
        timeout=LONG,
        check=True,
    )


def test_a_program_submits_a_task_and_shows_its_output(lab: RunLab) -> None:
    done = _program(lab, "hello.py")
    assert done.stdout.startswith("hello from ")
    assert done.stdout.endswith("\nseed 7\n")
    assert ": done: " in done.stderr.splitlines()[-1]


def test_the_example_notebook_runs_from_its_first_cell_to_its_last(
    lab: RunLab, tmp_path: Path
) -> None:
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text())
    (parameters,) = (one for one in notebook["cells"] if "tags" in one["metadata"])
    parameters["source"] = [f"image = {lab.image!r}"]
    (tmp_path / "run.ipynb").write_text(json.dumps(notebook))
    subprocess.run(
        [Path(sys.executable).with_name("jupyter-execute"), "--inplace", "run.ipynb"],
        cwd=tmp_path,
        env={**os.environ, **lab.controller.env},
        check=True,
        timeout=LONG,
    )
    cells = json.loads((tmp_path / "run.ipynb").read_text())["cells"]
    shown, status = _outputs(cells, "run.wait")
    assert "done" in shown["data"]["text/plain"][0]
    assert status["data"]["text/plain"] == ["'done'"]
    (log,) = _outputs(cells, "run.logs")
    assert "".join(log["text"]) == "loss 0.9\nloss 0.5\nloss 0.25\n\n"
    assert _outputs(cells, "pull_outputs")[-1]["data"]["text/plain"] == ["'0.25\\n'"]


def _outputs(cells: list[dict[str, Any]], word: str) -> list[dict[str, Any]]:
    """The outputs of the cell with this word in its source."""
    (cell,) = (one for one in cells if word in "".join(one["source"]))
    outputs: list[dict[str, Any]] = cell["outputs"]
    return outputs


def test_a_program_awaits_several_runs_at_once(lab: RunLab) -> None:
    assert _program(lab, "sweep.py").stdout == "best size: 8\n"


def test_parameters_are_chosen_a_round_at_a_time(
    lab: RunLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The awk of the tests' image has no logarithm.
    monkeypatch.setattr(tune, "TRAIN", 'echo ${{ params.lr }} > "$FAIRLEAD_OUTPUT_DIR/loss"')
    asked = iter((0.001, 0.01, 0.1))
    told: dict[int, float | None] = {}
    with Client(lab.controller.url, lab.controller.token) as client:
        tune.one_round(
            client, lab.image, 3, lambda: {"lr": next(asked), "width": 20}, told.__setitem__
        )
    assert told == {0: 0.001, 1: 0.01, 2: 0.1}


def test_output_goes_on_where_it_was_while_the_controller_restarts(lab: RunLab) -> None:
    told: list[str] = []
    with Client(lab.controller.url, lab.controller.token, tell=told.append) as client:
        run = client.submit(
            Task(image=lab.image, commands=["echo one", UNTIL_ASKED, "echo two"]), name="resumed"
        )
        pieces = run.logs(follow=True)
        first = next(pieces)
        lab.controller.restart()
        lab.let_go("resumed")
        assert (first.text, "".join(piece.text for piece in pieces)) == ("one\n", "two\n")
        assert run.wait().exit_status == 0
        resumed = run.logs(attempt=first.attempt, offset=first.end)
        assert [piece.text for piece in resumed] == ["two\n"]
    assert told[-1] == "the controller is back"
