"""A job gets its signal before its end, saves its state and comes back; without a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lab import PlainLab

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[3] / "examples/checkpoint.yaml"
FOREVER = "while :; do sleep 0.05; done"


def test_the_example_saves_its_state_and_comes_back(plain_lab: PlainLab, tmp_path: Path) -> None:
    # The signal comes after 6 s: the shell has set its trap, and is not through its steps.
    shorter = {"max_duration": "36s", "signal.before": "30s", "env.STEPS": "10"}
    given = {**shorter, "env.STATE": str(tmp_path / "state")}
    options = [part for name, value in given.items() for part in ("--override", f"{name}={value}")]
    done = plain_lab.cli("apply", "-f", EXAMPLE, *options).succeeded()
    first, *_, last = plain_lab.attempts("checkpoint")
    assert (first["termination_reason"], first["exit_code"]) == ("interrupted", 85)
    assert last["termination_reason"] == "done_by_runner"
    for text in ("saved step", '"cause":"time_limit_reached"', "finished at step 10"):
        assert text in done.output
    events = plain_lab.cli("events", "checkpoint").succeeded().output
    assert "SIGUSR1" in events


def test_a_drain_is_told_once_though_controller_and_shim_are_killed(plain_lab: PlainLab) -> None:
    show = "trap 'cat \"$FAIRLEAD_SIGNAL_FILE\"; echo told' USR1; trap 'echo asked; exit 0' TERM"
    plain_lab.start(
        "drained",
        commands=[f"{show}; echo ready; {FOREVER}"],
        signal={"name": "SIGUSR1", "before": "1h"},
    )
    plain_lab.wait_for_log("drained", b"ready")
    plain_lab.cli("node", "drain", "n1", "--deadline", "10m").succeeded()
    plain_lab.wait_for_log("drained", b"told")
    plain_lab.shim.restart()
    plain_lab.controller.restart()
    plain_lab.wait_for_node(lambda node: node["status"] == "connected")
    plain_lab.cli("node", "drain", "n1", "--deadline", "0s").succeeded()
    plain_lab.wait_for("drained", "submitted")
    first = plain_lab.attempts("drained")[0]
    assert (first["termination_reason"], first["exit_code"]) == ("node_drained", 0)
    log = plain_lab.cli("logs", "drained", "--attempt", "0").succeeded().output
    said = [line for line in log.splitlines() if line in ("ready", "told", "asked")]
    assert said == ["ready", "told", "asked"]
    assert log.count('"cause":"node_drained"') == 1
