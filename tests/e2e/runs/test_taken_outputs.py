"""What one run leaves is in the folder of the next before it starts; without a container."""

from __future__ import annotations

import pytest

from tests.support.lab import PlainLab

pytestmark = pytest.mark.e2e


def test_the_outputs_of_runs_are_there_however_many_jobs_they_had(plain_lab: PlainLab) -> None:
    write = (
        'mkdir "$FAIRLEAD_OUTPUT_DIR/deep"; '
        'echo "from $FAIRLEAD_JOB_INDEX" > "$FAIRLEAD_OUTPUT_DIR/deep/a"'
    )
    plain_lab.apply("early", commands=[write]).succeeded()
    plain_lab.submit("parts", commands=[write], nodes=2, gang=False, share_nodes=True)
    done = plain_lab.apply(
        "train",
        commands=["cd inputs; grep -r from . | sort", "echo changed > early/deep/a"],
        after=["parts"],
        outputs_from=["early", "parts"],
    ).succeeded()
    assert done.output.splitlines() == [
        "./early/deep/a:from 0",
        "./parts/main-0/deep/a:from 0",
        "./parts/main-1/deep/a:from 1",
    ]
    again = plain_lab.apply("again", commands=["cat inputs/early/deep/a"], outputs_from="early")
    assert again.succeeded().output == "from 0\n"
    refused = plain_lab.apply("never", commands=["true"], outputs_from="train")
    assert "outputs_from" in refused.errors
    assert "left no outputs" in refused.errors
