"""Eviction makes room for a higher band (docs/rules.md 6.5).

`victims` says which jobs may be evicted and at which price. `preemption` searches for the cheapest
set of them after which a job or a gang fits.
"""
