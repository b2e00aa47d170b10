"""The hunt for tests that race with time stops a command for moments, and changes nothing else."""

from __future__ import annotations

import random
import sys

from tests.support.pauses import STANDS_STILL, run

GAP = """
import sys, time
longest, last, until = 0.0, time.monotonic(), time.monotonic() + 60
while longest < float(sys.argv[1]) and last < until:
    time.sleep(0.001)
    now = time.monotonic()
    longest, last = max(longest, now - last), now
sys.exit(7 if longest >= float(sys.argv[1]) else 1)
"""


def test_a_command_stands_still_for_a_moment_and_keeps_its_exit_status() -> None:
    assert run([sys.executable, "-c", GAP, str(min(STANDS_STILL))], random.Random(1)) == 7
