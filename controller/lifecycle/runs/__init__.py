"""Runs: how a run begins, goes on and ends, as its jobs tell.

`first_state` is how it begins, `status` derives its status from its jobs, `schedules` starts
its occurrences, and `ending` closes it. `compaction` drops old attempts from its state.
"""
