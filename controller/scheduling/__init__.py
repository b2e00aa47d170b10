"""Scheduling decides which job goes to which node, with pure functions over runs, nodes and
allocations.

The scheduler writes allocations, nominations and pending reasons only; a run's own turn makes the
transitions.
"""
