"""The index from nodes to runs: whom a node's news concerns, and where a job minds silence."""

from __future__ import annotations

import msgspec

from controller.lifecycle.model import RunState
from controller.pipelines.live_state import RunsByNode
from fairlead.model.statuses import AllocationState, AttemptStatus
from tests.unit.pipelines.parts import placed


def minding(state: RunState) -> RunState:
    job = state.jobs[0]
    spec = msgspec.structs.replace(job.spec, stop_when_unheard=60.0)
    return msgspec.structs.replace(state, jobs=(msgspec.structs.replace(job, spec=spec),))


def ended(state: RunState) -> RunState:
    job = state.jobs[0]
    attempt = msgspec.structs.replace(job.attempts[0], status=AttemptStatus.DONE)
    places = tuple(
        msgspec.structs.replace(place, state=AllocationState.RELEASED)
        for place in state.allocations
    )
    jobs = (msgspec.structs.replace(job, attempts=(attempt,)),)
    return msgspec.structs.replace(state, jobs=jobs, allocations=places)


def test_a_run_is_listed_where_it_has_something_until_that_is_given_back() -> None:
    by_node, state = RunsByNode(), placed(AttemptStatus.RUNNING)
    assert by_node.moved(None, state) == ["n1"]
    assert by_node.moved(state, msgspec.structs.replace(state)) == []
    assert list(by_node.on("n1")) == [state.run.id]
    assert by_node.moved(state, ended(state)) == []
    assert list(by_node.on("n1")) == []


def test_a_node_is_asked_for_jobs_that_mind_silence_only_while_one_may_be_there() -> None:
    by_node, plain, minds = (
        RunsByNode(),
        placed(AttemptStatus.RUNNING),
        minding(placed(AttemptStatus.RUNNING)),
    )
    by_node.moved(None, plain)
    assert not by_node.may_mind_silence("n1")
    by_node.moved(None, minds)
    assert by_node.may_mind_silence("n1")
    by_node.moved(minds, ended(minds))
    by_node.moved(plain, ended(plain))
    assert not by_node.may_mind_silence("n1")
