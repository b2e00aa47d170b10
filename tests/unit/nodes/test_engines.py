"""The watch over nodes whose engine stays away, on a clock that the test moves."""

from __future__ import annotations

import msgspec
import pytest

from controller.lifecycle.model import Node, NodeStatus, RunState
from controller.lifecycle.reports import EngineGone, Report
from controller.nodes.engines import EngineAbsences
from fairlead.model.statuses import AttemptStatus
from tests.doubles.clock import ManualClock
from tests.unit.pipelines.parts import NotedPipeline, a_node, placed

AFTER = 300.0


def with_engine(error: str | None, status: NodeStatus = NodeStatus.CONNECTED) -> Node:
    node = a_node(status=status)
    return msgspec.structs.replace(
        node, capacity=msgspec.structs.replace(node.capacity, engine_error=error)
    )


class Watch:
    def __init__(self, state: RunState) -> None:
        self.clock = ManualClock()
        self.pipeline = NotedPipeline()
        self.pipeline.restore([state], [with_engine("no socket")])
        self._absences = EngineAbsences(self.pipeline, self.clock, AFTER)
        self._absences.look()

    def after(self, seconds: float, node: Node | None = None) -> list[Report]:
        """Return what is reported when the watch looks next, that much later."""
        self.clock.time += seconds
        if node is not None:
            self.pipeline.set_node(node, node.id)
        self.pipeline.posted.clear()
        self._absences.look()
        return list(self.pipeline.posted)


def test_an_engine_that_stays_away_is_reported_again_and_again_once_its_time_is_over() -> None:
    state = placed(AttemptStatus.PROVISIONING)
    watch = Watch(state)
    assert watch.after(AFTER - 1.0) == []
    message = "the engine of node node-n1 has not answered for 300 s: no socket"
    assert watch.after(1.0) == [EngineGone(run_id=state.run.id, node_id="n1", message=message)]
    assert len(watch.after(10.0)) == 1


def test_an_engine_that_answers_in_between_has_its_whole_time_again() -> None:
    watch = Watch(placed(AttemptStatus.PROVISIONING))
    assert watch.after(AFTER - 1.0, with_engine(None)) == []
    assert watch.after(1.0, with_engine("no socket")) == []
    assert watch.after(AFTER - 1.0) == []
    assert len(watch.after(1.0)) == 1


def test_a_silent_node_is_judged_by_its_silence_alone() -> None:
    watch = Watch(placed(AttemptStatus.PROVISIONING))
    assert watch.after(AFTER, with_engine("no socket", NodeStatus.UNREACHABLE)) == []
    assert len(watch.after(0.0, with_engine("no socket"))) == 1


@pytest.mark.parametrize(
    ("status", "reports"), [(AttemptStatus.RUNNING, 0), (AttemptStatus.PULLING, 1)]
)
def test_a_run_whose_jobs_all_run_there_is_left_alone(status: AttemptStatus, reports: int) -> None:
    assert len(Watch(placed(status)).after(AFTER)) == reports
