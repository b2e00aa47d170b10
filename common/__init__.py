"""The parts that every program of Fairlead shares: the shape of errors, durable files, sizes and
keys.

It imports nothing of the programs. `http` needs aiohttp; everything else needs only msgspec and the
standard library, because the runner loads it before a job starts.
"""
