"""The life of a task, from its record to its removal.

`supervisor.Supervisor` owns the tasks, a `driver` takes each through its `steps`, and every step
can be done and undone twice.
"""
