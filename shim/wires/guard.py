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
from shim.wires.namespace import Namespace

log = logging.getLogger(__name__)
_KEEPER = ("env", "HOME=/dev/null", "nft", "-i")
"""nft would keep a history of what it was told, as a shell does."""
_MADE_WITHIN = 2.0
_PAUSE = 0.005
_ENDS_WITHIN = 5.0


class Guard:
    """The guard of one shim's wires. Blocking, for one thread at a time."""

    def __init__(self, install_id: str, namespace: Namespace) -> None:
        self._names, self._namespace = rules.Names(install_id), namespace
        self._keeper: subprocess.Popen[str] | None = None
        self._is_possible = True

    def ensure(self) -> None:
        """Make the table unless it is there. Raises WireError."""
        if not self._is_possible or self._is_there():
            return
        self.close()
        self._keeper = self._namespace.start(*_KEEPER, given=rules.guard(self._names))
        until = time.monotonic() + _MADE_WITHIN
        while not self._is_there():
            if time.monotonic() > until:
                self._is_possible = False
                log.info("`nft flush ruleset` would open the way between runs for a moment")
                self.close()
                return
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
