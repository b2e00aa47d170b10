"""The parts that every program of Fairlead shares: `files`, the first `processes` of a task,
refusals, tokens and limits.

It imports nothing of the programs. `http` needs aiohttp; everything else needs only msgspec and the
standard library, because the runner loads it before a job starts.
"""
