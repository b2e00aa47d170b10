"""What a job leaves in its output folder is here when it has ended, however it ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lab import UNTIL_ASKED, RunLab

pytestmark = pytest.mark.e2e

MUCH = 40 << 20


def _listed(lab: RunLab, name: str) -> dict[str, object]:
    (found,) = json.loads(lab.cli("outputs", name, "--json").succeeded().output)["outputs"]
    assert isinstance(found, dict)
    return found


def test_a_failed_job_leaves_files_and_nothing_of_its_node(lab: RunLab, tmp_path: Path) -> None:
    commands = [
        'cd "$FAIRLEAD_OUTPUT_DIR"; mkdir -p deep/er; echo result > deep/er/a.txt',
        f"head -c {MUCH} /dev/zero > much",
        "ln -s /etc/passwd link; ln -s / root; mkfifo pipe; ln -s deep latest; exit 3",
    ]
    assert lab.apply("left-behind", commands=commands).status == 3
    found = _listed(lab, "left-behind")
    assert (found["state"], found["count"], found["size"]) == ("collected", 2, MUCH + 7)
    assert found["left_out"] == 3
    attempt = lab.attempts("left-behind")[-1]
    assert attempt["outputs"]["state"] == "collected"
    lab.cli("outputs", "left-behind", "--pull", tmp_path / "here").succeeded()
    brought = {
        path.relative_to(tmp_path / "here").as_posix(): path.stat().st_size
        for path in (tmp_path / "here").rglob("*")
        if path.is_file()
    }
    assert (tmp_path / "here/latest/er/a.txt").read_text() == "result\n"
    assert brought == {"deep/er/a.txt": 7, "much": MUCH}
    assert "2 files" in lab.cli("events", "left-behind").succeeded().output


def test_an_aborted_job_keeps_its_outputs_while_controller_and_shim_are_killed(
    lab: RunLab, tmp_path: Path
) -> None:
    write = 'echo kept > "$FAIRLEAD_OUTPUT_DIR/a"; echo written'
    lab.start("cut-off", commands=[f"{write}; {UNTIL_ASKED}"])
    lab.wait_for_log("cut-off", b"written")
    lab.cli("stop", "cut-off", "--abort").succeeded()
    lab.controller.restart()
    lab.shim.restart()
    lab.wait_for("cut-off", "terminated")
    assert _listed(lab, "cut-off")["files"] == [{"name": "a", "size": 5}]
    lab.cli("outputs", "cut-off", "--pull", tmp_path).succeeded()
    assert (tmp_path / "a").read_text() == "kept\n"


def test_paths_of_outputs_are_kept_of_jobs_that_are_stopped_or_out_of_memory(
    lab: RunLab, tmp_path: Path
) -> None:
    kept = {"user": "65534", "working_dir": "/tmp/work", "outputs": ["ckpt/**/*.pt", "none"]}
    write = "mkdir -p ckpt/deep; echo 1 > ckpt/deep/a.pt; echo 2 > ckpt/b.log; echo written"
    lab.start("stopped", commands=[f"{write}; {UNTIL_ASKED}"], **kept)
    lab.apply("eaten", commands=[write, "tail /dev/zero"], resources={"memory": "64MB"}, **kept)
    lab.wait_for_log("stopped", b"written")
    lab.cli("stop", "stopped").succeeded()
    lab.wait_for("stopped", "terminated")
    for name in ("stopped", "eaten"):
        lab.wait_for_log(name, b"outputs: none: there is no such file or folder")
        assert _listed(lab, name)["files"] == [{"name": "ckpt/deep/a.pt", "size": 2}]
    assert lab.attempts("eaten")[-1]["termination_reason"] == "out_of_memory"


def test_the_example_in_python_brings_what_its_job_wrote(lab: RunLab, tmp_path: Path) -> None:
    program = Path(__file__).parents[3] / "examples/python/outputs.py"
    ended = subprocess.run(
        [sys.executable, str(program), lab.image, str(tmp_path / "here")],
        env={**os.environ, **lab.controller.env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stdout, ended.returncode) == ("kept ckpt/loss.txt: loss 0.25\n", 0), ended.stderr
