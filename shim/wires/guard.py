"""A table of nftables that `nft flush ruleset` leaves in place. Without it, that command opens the
way between runs until the shim has written its own table again.

The kernel lets only the process that made such a table change it, and removes it when this process
ends (Linux 5.12; flag `owner` of nft(8), 1.0). So a program of nft waits as long as the shim lives.
"""

from __future__ import annotations

import logging
import subprocess
import time

from shim.wires import rules
from shim.wires.namespace import Namespace, WireError

log = logging.getLogger(__name__)
_KEEPER = ("env", "HOME=/dev/null", "nft", "-i")
"""nft would keep a history of what it was told, as a shell does."""
_MADE_WITHIN = 20.0
"""Seconds, as for other programs: a busy node lets a new one wait. One that cannot make it ends."""
_PAUSE = 0.02
_ENDS_WITHIN = 5.0


class Guard:
    """The guard of one shim's wires. Blocking, for one thread at a time."""

    def __init__(self, install_id: str, namespace: Namespace) -> None:
        self._names, self._namespace = rules.Names(install_id), namespace
        self._keeper: subprocess.Popen[str] | None = None
        self._why_not: str | None = None

    def ensure(self) -> None:
        """Make the table unless it is there. A node that cannot have it is only told: the rules of
        wires are others."""
        # While its program runs, nobody else can remove it.
        if self._keeper is not None and self._keeper.poll() is None:
            return
        # An earlier life's, whose program is about to end: the next look makes it again.
        if self._is_there():
            return
        self.close()
        try:
            self._make()
        except WireError as error:
            self.close()
            # nft shows the whole text below its first line.
            why = str(error).partition("\n")[0]
            if self._why_not != why:
                log.info("`nft flush ruleset` would open the way between runs: %s", why)
            self._why_not = why
        else:
            self._why_not = None

    def _make(self) -> None:
        """Raises WireError."""
        text = rules.guard(self._names)
        # An older nft or kernel says here at once what it lacks.
        self._namespace.run("nft", "-c", "-f", "-", given=text)
        self._keeper = self._namespace.start(*_KEEPER, given=text)
        until = time.monotonic() + _MADE_WITHIN
        while not self._is_there():
            # Some builds of nft have no `-i`.
            if time.monotonic() > until or self._keeper.poll() is not None:
                raise WireError("`nft -i` does not make the table")
            time.sleep(_PAUSE)

    def _is_there(self) -> bool:
        return self._namespace.answers("nft", "list", "table", "inet", self._names.guard)

    def close(self) -> None:
        """End the program, and with it the table."""
        if self._keeper is None:
            return
        keeper, self._keeper = self._keeper, None
        try:
            keeper.communicate(timeout=_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.communicate()
