"""Attempts: the life of one try of a job, from its limits to what follows its end.

`limits` names the deadlines on the way, `startup` who waits for whom, `awaited` what an attempt
waits for, and `inactivity` when a dev environment is unused. `termination` gives an attempt its
reason and makes it final. `retry` decides whether another attempt follows, and `allocations` what
becomes of the node's resources in between.
"""
