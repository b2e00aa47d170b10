"""Overridden fields, runs that are submitted again, scripts of Slurm, several files at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.cli.conftest import Fairlead
from tests.unit.cli.output import of

TASK = "type: task\nname: train\nimage: busybox\nenv: {LR: '0.3'}\ncommands: [echo $LR]\n"


async def configuration(start: Fairlead, run: str) -> dict[str, Any]:
    shown = await of(start, "inspect", run, "--configuration", "--json")
    found: dict[str, Any] = json.loads(shown.out)
    return found


async def test_a_field_is_overridden_and_a_run_is_submitted_again(
    start: Fairlead, tmp_path: Path
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(TASK)
    first = await of(start, "apply", str(file), "-d", "--override", "env.LR=0.1")
    assert (first.status, first.out) == (0, b"train\n")
    assert (await configuration(start, "train"))["env"] == {"LR": "0.1"}
    again = await of(start, "rerun", "train", "-d", "-n", "more", "--override", "env.LR=0.2")
    assert (again.status, again.out) == (0, b"more\n")
    expected = {"env": {"LR": "0.2"}, "commands": ["echo $LR"], "name": "train"}
    assert (await configuration(start, "more")).items() >= expected.items()
    wrong = await of(start, "apply", str(file), "--override", "resource.gpu=1")
    assert (wrong.status, "resource: is not a field" in wrong.err) == (2, True)


async def test_a_value_that_was_not_kept_must_be_given_again(
    start: Fairlead, tmp_path: Path
) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(TASK.replace("LR: '0.3'", "API_TOKEN: s3cret"))
    await of(start, "apply", str(file), "-d")
    missing = await of(start, "rerun", "train", "-d", "-n", "more")
    assert (missing.status, "env.API_TOKEN: the value may be secret" in missing.err) == (2, True)
    given = await of(start, "rerun", "train", "-d", "-n", "more", "-e", "API_TOKEN=other")
    assert given.status == 0


async def test_a_script_of_slurm_is_submitted(start: Fairlead, tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text("#!/bin/bash\n#SBATCH -J train\n#SBATCH -c 2 -t 10\nhostname\n")
    submitted = await of(start, "sbatch", str(file), "arg")
    assert (submitted.status, submitted.out) == (0, b"train\n")
    found = await configuration(start, "train")
    assert (found["resources"], found["max_duration"]) == ({"cpu": 2}, 600)
    file.write_text("#!/bin/bash\n#SBATCH --array=x\n#SBATCH --qos=high\nhostname\n")
    refused = await of(start, "sbatch", str(file))
    assert (refused.status, refused.err.count("job.sh:")) == (2, 2)
    shown = await of(
        start, "sbatch", "--dry-run", "--ignore", "array", "--ignore", "qos", str(file)
    )
    assert (shown.status, shown.out.startswith(b"type: task\n")) == (0, True)


async def test_several_files_are_one_act(start: Fairlead, tmp_path: Path) -> None:
    train, prepare = tmp_path / "train.yaml", tmp_path / "prepare.yaml"
    train.write_text(f"{TASK}after: prepare\n")
    prepare.write_text(TASK.replace("name: train", "name: prepare"))
    both = ("apply", "-d", "-f", str(train), "-f", str(prepare))
    submitted = await of(start, *both)
    assert (submitted.status, submitted.out) == (0, b"train\nprepare\n")
    refused = await of(start, *both)
    assert (refused.status, f"{train}:2: name: a live run" in refused.err) == (2, True)
    train.write_text(f"{TASK.replace('train', 'other')}after: nobody\n")
    prepare.write_text(TASK.replace("name: train", "name: third"))
    refused = await of(start, *both)
    assert f"{train}:6: after[0].run: you have no run 'nobody'" in refused.err
    assert len(json.loads((await of(start, "ps", "--json")).out)["runs"]) == 2


async def test_what_only_the_controller_knows_is_refused_with_its_line(
    start: Fairlead, tmp_path: Path
) -> None:
    train = tmp_path / "train.yaml"
    for run, why in (("nobody", "you have no run 'nobody'"), ("train", "cannot wait for itself")):
        train.write_text(f"{TASK}after: {run}\n")
        refused = await of(start, "apply", "-d", "-f", str(train))
        assert refused.err.startswith(f"fairlead: {train}:6: after[0].run: ")
        assert (refused.status, why in refused.err) == (2, True)


async def test_inspect_says_for_whom_a_run_waits(start: Fairlead, tmp_path: Path) -> None:
    train, prepare = tmp_path / "train.yaml", tmp_path / "prepare.yaml"
    train.write_text(f"{TASK}after: [{{run: prepare, when: ended}}]\nstart_before: 4h\n")
    prepare.write_text(TASK.replace("name: train", "name: prepare"))
    await of(start, "apply", "-d", "-f", str(train), "-f", str(prepare))
    shown = (await of(start, "inspect", "train")).out.decode()
    assert ") is ended\nmust run by 20" in shown
    assert "main/0 waits: after run prepare: waits until it has ended" in shown
    await of(start, "stop", "prepare")
    shown = (await of(start, "inspect", "train")).out.decode()
    assert (") is ended: met\n" in shown, "main/0 waits: after" in shown) == (True, False)


async def test_a_task_of_skypilot_is_printed_as_one_here(start: Fairlead, tmp_path: Path) -> None:
    sky = tmp_path / "sky.yaml"
    sky.write_text("name: train\nresources: {accelerators: H100:8, cloud: aws}\nrun: hostname\n")
    printed = await of(start, "convert", str(sky))
    assert (printed.status, "resources.cloud is left out" in printed.err) == (0, True)
    assert b"resources:\n  gpu: H100:8\n" in printed.out
    sky.write_text("run: x\nservice: {}\n")
    refused = await of(start, "convert", str(sky))
    assert (refused.status, f"{sky}:2: service: " in refused.err) == (2, True)
