"""Machines at their providers: what was committed is asked for, and what exists is compared with
the records (docs/rules.md 12).

`manager` keeps one worker for each provider (`worker`). `boot_data` derives what a machine boots
with. Decisions lie in `lifecycle.machines` and are made in turns (`pipelines.rentals`).
"""
