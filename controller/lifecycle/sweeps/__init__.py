"""Sweeps: one run that executes a task once for each parameter set (docs/rules.md 11).

`sets`      what a set is: its jobs, its status, how many there are of each
`begin`     waiting sets begin: jobs and attempts are made as late as possible
`together`  the jobs of a set of several nodes end together
`outcome`   the run's status, derived from its sets
`chosen`    sets that a user stops or retries
`ended`     ended sets leave the state that is decided in each turn
"""
