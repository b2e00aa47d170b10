"""What outlives the shim: records on disk, what they say after a restart (`reconcile`), which
controller may speak (`fencing`) and what happened (`events`)."""
