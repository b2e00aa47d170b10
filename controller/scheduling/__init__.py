"""Scheduling decides which job goes to which node, with pure functions over runs, nodes and
allocations.

`queue` makes units of the waiting jobs, and `placement` gives each of them an allocation, a
nomination or a pending reason, in one pass over the `index`, whose `trial_capacity` is what the
pass has not given out. `fitting` says what fits on a node. `gang_placement` and `packing` place
several jobs together. `eviction` chooses victims, and `nominations` keep their room. `renting` says
which machines to rent. `diagnosis` and `explain` say why a job waits, `feasibility` what is refused
at submit.

The scheduler writes allocations, nominations and pending reasons only; a run's own turn makes the
transitions.
"""
