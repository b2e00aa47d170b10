"""What users ask for about a single job: its log, ports, metrics, terminal and outputs.

`access` finds the job and the connection of its node; the other modules give what it has.
"""
