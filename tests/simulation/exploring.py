"""Worlds that nobody has seen before: whatever becomes of one is told, and holds up no other."""

from __future__ import annotations

import signal
import traceback

from tests.simulation.checks import Violation
from tests.simulation.world import Outcome, simulate

MAX_SECONDS = 300.0
"""For one world; most take three."""


def explored(seed: int) -> Outcome:
    """A fault that ends the world itself, or keeps it from its end, is found like any other."""
    signal.signal(signal.SIGALRM, _give_up)
    # Repeated: the cleanup of a story that never ends may never end either.
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS, MAX_SECONDS)
    try:
        return simulate(seed)
    except (Exception, NeverEnds) as error:
        # The next alarm would end what comes now, and with it the caller.
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        text = "".join(traceback.format_exception(error))
        return Outcome(
            seed=seed,
            violations=(Violation(at=0.0, text=text),),
            virtual_seconds=0.0,
            runs=0,
            events=0,
            controllers=0,
            digest=0,
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


class NeverEnds(KeyboardInterrupt):
    """An event loop and what runs in it let this kind of exception alone."""


def _give_up(*_: object) -> None:
    raise NeverEnds(f"its story was not over within {MAX_SECONDS:g} s")
