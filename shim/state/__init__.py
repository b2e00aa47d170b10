"""The state that outlives the shim: records on disk, their meaning after a restart (`reconcile`),
which controller may command it (`fencing`) and what happened (`events`).
"""
