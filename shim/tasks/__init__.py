"""The life of a task, from its record to its removal.

`supervisor.Supervisor` owns the tasks, a `driver` takes each through its `steps`, and every step
can be done and undone twice. `stopping` ends a job so that its runner can record how. `reconcile`
finds out after a restart which tasks there are; `controller_silence` ends those that must not live
without a controller.
"""
