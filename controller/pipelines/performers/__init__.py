"""The performers carry out effects on nodes, each one kind, and report what came of it.

`job_running` submits tasks, starts jobs and follows them; `cluster` tells the jobs of a run about
each other. `job_terminating` stops and removes. `log_collection` and `output_collection` store what
jobs leave. `service_replicas` probes, registers and drains replicas, and `dev_environments` watches
their use.
"""
