"""How many nodes are being connected to at once.

A handshake, and reading what the node has, costs the event loop some milliseconds; a thousand of
them together, after a cut of the network, would hold up everything else. Who waits for the network
holds nobody up, though: a slot is lent for a short time only, so that dead hosts don't keep the
living from coming back.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from controller.slots import Slots

AT_ONCE = 12
LENT_SECONDS = 2.0


class Handshakes:
    def __init__(self, at_once: int = AT_ONCE, lent: float = LENT_SECONDS) -> None:
        self._slots = Slots(lambda: at_once)
        self._lent = lent

    def slot(self) -> AbstractAsyncContextManager[None]:
        """First come, first served."""
        return self._slots.slot(self._lent)
