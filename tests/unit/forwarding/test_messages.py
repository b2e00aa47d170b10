"""What a follower gives the leader means the same there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from controller.forwarding.submissions.messages import Reading
from controller.service.runs.submission_stages import Submission, plan_of
from fairlead.configuration.runs.plan import Defaults, Plan
from fairlead.model.needs import Resources

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_plan_is_the_same_at_the_other_end(path: Path) -> None:
    submission = Submission(configuration=yaml.safe_load(path.read_text()))
    plan = plan_of(submission, Defaults())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan) == plan


async def test_controllers_read_alike_if_their_defaults_are_equal() -> None:
    own = await Reading(Defaults()).digest()
    assert await Reading(Defaults()).digest() == own
    assert await Reading(Defaults(resources=Resources(cpu=3.0))).digest() != own


def test_each_process_finds_the_same_reading() -> None:
    """Sets have another order in each."""
    program = (
        "import asyncio; from controller.forwarding.submissions.messages import Reading;"
        "from fairlead.configuration.runs.plan import Defaults;"
        "print(asyncio.run(Reading(Defaults()).digest()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
