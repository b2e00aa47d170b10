"""Which job goes to which node: pure functions over runs, nodes and what is held already.

The scheduler writes allocations and sentences only; a run's own turn makes the transitions.
"""
