"""Sweeps: one run that executes a task once for each parameter set (docs/rules.md 11).

`sets`      what a set is: its jobs, its status, how many there are of each
`begin`     waiting sets begin: jobs and attempts are made as late as possible
`carrying`  jobs that use the container of another set's job after its end
`outcome`   what ends with a job: its set of several nodes, and at last the run
`chosen`    sets that a user stops or retries
`ended`     ended sets leave the state that is decided in each turn
"""
