"""The pages for users of other systems: each command, field and file of theirs is tried here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.lifecycle.model import RetryEvent
from fairlead.cli.main import make_app
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, Plan, to_run
from fairlead.configuration.text import skypilot
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.sbatch import SbatchError, convert
from fairlead.wire.job import BucketMode, EndSignal

PAGES = sorted((Path(__file__).parents[3] / "docs").glob("coming-from-*.md"))
# The page for dstack's users names no field: they keep theirs.
PAGES_WITH_FIELDS = [page for page in PAGES if page.stem != "coming-from-dstack"]
BESIDE = {"type": "task", "image": "busybox"}


def cells(page: Path) -> list[str]:
    """What stands in the right column of the page's tables."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    return [row.strip("| ").rpartition(" | ")[2] for row in rows]


def quoted(page: Path) -> list[str]:
    return [text for cell in cells(page) for text in re.findall(r"`([^`]+)`", cell)]


def test_there_is_a_page_for_each_system() -> None:
    names = [page.stem.removeprefix("coming-from-") for page in PAGES]
    assert names == ["dstack", "iris", "skypilot", "slurm", "ytsaurus"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_of_the_page_can_be_called_so(page: Path) -> None:
    commands = [text for text in quoted(page) if text.startswith("fairlead ")]
    assert len(commands) >= 7
    for command in commands:
        words = shlex.split(command)[1:]
        make_app(words).parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", PAGES_WITH_FIELDS, ids=lambda page: page.stem)
def test_each_field_of_the_page_is_accepted(page: Path) -> None:
    fields = [text for text in quoted(page) if re.match(r"[a-z_]+: ", text)]
    assert fields
    for field in fields:
        written = yaml.safe_load(field.replace("abcd1234", "abcd-1234"))
        data = {**BESIDE, **written, **({"nodes": 8} if "gang" in written else {})}
        if "setup" in written:
            data["commands"] = ["true"]
        parse(with_environment(data, {"HF_TOKEN": "secret"}, {}))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_file_of_the_page_is_accepted(page: Path) -> None:
    files = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    assert files
    for file in files:
        parse(yaml.safe_load(file))


def plan_of(page: str, row: str) -> Plan:
    """The plan of a task with all fields that the row of this page names."""
    file = next(one for one in PAGES if one.stem == f"coming-from-{page}")
    line = next(line for line in file.read_text().splitlines() if line.startswith(f"| {row}"))
    fields: dict[str, object] = {}
    for text in re.findall(r"`([^`]+)`", line.rpartition(" | ")[2]):
        if re.match(r"[a-z_]+: ", text):
            fields |= yaml.safe_load(text)
    data = {**BESIDE, **fields}
    return to_run(parse(data), data, Defaults())


def options_of_slurm() -> dict[str, str]:
    """The rows of the table of options: the right cell by the options that `#SBATCH` may have."""
    text = next(one for one in PAGES if one.stem == "coming-from-slurm").read_text()
    table = text.partition("| option there |")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ", 1) for row in table.splitlines() if row.startswith("| ")]
    return {left: right for left, right in rows if left.startswith("`-")}


BY_HAND = "YAML only"
"""How the page marks an option that `fairlead sbatch` refuses."""


@pytest.mark.parametrize("left", options_of_slurm())
def test_each_option_of_slurm_is_read_as_its_row_says(left: str) -> None:
    right = options_of_slurm()[left]
    lines = [f"#SBATCH {one}" for one in re.findall(r"`(-[^`]+)`", left)]
    lines = [line for one in lines for line in one.replace(" -t ", "\n#SBATCH -t ").splitlines()]
    script = "\n".join(["#!/bin/bash", *lines, "true"])
    if "scontrol requeue" in left:
        script += "\ntrap 'scontrol requeue $SLURM_JOB_ID' USR1\n"
    if BY_HAND in right:
        for line in lines:
            with pytest.raises(SbatchError, match=r"job\.sh:2: .* the YAML "):
                convert(f"#!/bin/bash\n{line}\n", "job.sh")
        return
    made = {**BESIDE, **convert(script, "job.sh").configuration}
    meant: dict[str, object] = {}
    for text in re.findall(r"`([^`]+)`", right):
        if re.match(r"\{?[a-z_]+: ", text):
            meant |= yaml.safe_load(text)
    assert meant or right.startswith("The default"), "the row names a field"
    for field in ("volumes", "retry"):  # an addition that the row proposes, and a default
        meant.pop(field, None) if field not in made else None
    data = {**BESIDE, "nodes": made.get("nodes"), **meant}
    by_hand, by_script = (to_run(parse(one), one, Defaults()) for one in (data, made))
    assert by_script.policy == by_hand.policy
    assert by_script.specs[0].resources == by_hand.specs[0].resources


def fields_of_skypilot() -> list[tuple[str, str]]:
    """The rows of the table of fields, whose left cell is YAML of SkyPilot."""
    text = next(one for one in PAGES if one.stem == "coming-from-skypilot").read_text()
    table = text.partition("| field there |")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ", 1) for row in table.splitlines() if row.startswith("| ")]
    return [(left, right) for left, right in rows if ": " in left and "mode:" not in left]


@pytest.mark.parametrize(("left", "right"), fields_of_skypilot())
def test_each_field_of_skypilot_is_converted_as_its_row_says(left: str, right: str) -> None:
    theirs: dict[str, Any] = {"run": "true"}
    section: list[str] = []
    for text in re.findall(r"`([^`]+: [^`]+)`", left):
        path, value = text.split(": ", 1)
        *above, name = path.split(".")
        section = above or section
        inner = theirs
        for part in section:
            inner = inner.setdefault(part, {})
        inner[name] = yaml.safe_load(value)
    made = skypilot.convert(theirs).configuration
    meant: dict[str, Any] = {}
    for text in re.findall(r"`([^`]+)`", right):
        if re.match(r"[a-z_]+: ", text) and text.partition(":")[0] in made:
            meant |= yaml.safe_load(text)
    assert meant, "the row names a field that comes of it"
    data = {**BESIDE, "commands": ["true"], **meant}
    given = {name: made[name] for name in meant}
    filled: Iterator[Any] = (
        with_environment(one, {"HF_TOKEN": "x"}, {}) for one in (data, {**data, **given})
    )
    if "files" in meant:
        assert given == meant
        return
    by_hand, by_convert = (to_run(parse(one), one, Defaults()) for one in filled)
    assert (by_convert.policy, by_convert.specs) == (by_hand.policy, by_hand.specs)


def test_a_job_of_slurm_is_requeued_by_default_and_after_no_error() -> None:
    assert plan_of("slurm", "`--requeue`").policy.retry.on_events == {RetryEvent.INTERRUPTION}
    assert plan_of("slurm", "`--no-requeue`").policy.retry.on_events == frozenset()


def test_the_signal_of_slurm_comes_within_its_time_limit() -> None:
    made = plan_of("slurm", "`--signal=B:USR1@120` with `-t 2:00:00`")
    assert made.policy.max_duration == 2 * 3600
    assert made.specs[0].signal == EndSignal(name="SIGUSR1", before=120.0)


def test_setup_and_run_of_skypilot_are_lists() -> None:
    (spec,) = plan_of("skypilot", "`run: python train.py`").specs
    assert spec.commands == ("python train.py",)
    data = {**BESIDE, "commands": ["a"], "setup": ["pip install torch"]}
    assert to_run(parse(data), data, Defaults()).specs[0].setup == ("pip install torch",)


def test_buckets_and_disks_of_skypilot_are_two_fields() -> None:
    (spec,) = plan_of("skypilot", "`file_mounts` of a bucket, `mode: COPY`").specs
    assert [(one.url, one.path, one.mode) for one in spec.buckets] == [
        ("s3://my-data/train", "/data", BucketMode.READ)
    ]
    (spec,) = plan_of("skypilot", "`file_mounts` of a disk").specs
    assert [(one.source, one.target) for one in spec.volumes] == [("/mnt/data", "/data")]
