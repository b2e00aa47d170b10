"""How much of a job's output is kept by default. Apart from `segments`, which loads asyncio: the
options name these numbers, and a job's first process reads them before it listens."""

SEGMENT_SIZE = 16 << 20
QUOTA = 1 << 30
"""Bytes."""
