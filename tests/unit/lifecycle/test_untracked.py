"""Python's collector does not look at the parts of each live run, of which there are many."""

from __future__ import annotations

import gc

from controller.lifecycle.model import Allocation, Attempt, Job, Run, RunPolicy, RunState
from controller.scheduling.queue import Member, Unit
from tests.unit.web.test_jobs import a_sweep


def test_what_each_run_has_is_not_tracked() -> None:
    kinds = (RunState, Run, RunPolicy, Job, Attempt, Allocation, Member, Unit)
    assert [kind.__name__ for kind in kinds if kind.__struct_config__.gc is not False] == []
    state = a_sweep(10)
    # A tuple is tracked until the collector has seen that its parts are not.
    gc.collect()
    found = (state, state.run, state.run.policy, state.jobs, *state.jobs)
    assert [one for one in found if gc.is_tracked(one)] == []
