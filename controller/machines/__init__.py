"""Machines at their providers: what was committed is asked for, and what exists is compared with
the records (docs/rules.md 12).

`manager` keeps for each provider its `calls`, which make and end machines, and its `supplies`,
which may be bought. `boot_data` derives what a machine boots with. Decisions lie in
`lifecycle.machines` and are made in turns (`pipelines.renting`).
"""
