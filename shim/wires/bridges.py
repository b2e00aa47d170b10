"""The rule that keeps the bridges of runs apart, where the engine connects containers.

Docker keeps its networks apart by a jump at the head of FORWARD. Versions before 28 take this jump
away for a moment whenever they make a network, and a job that asked for another run's container
without end reached it then (20.10.24: 90 of 2,000 packets while networks were made and removed). So
do restarts of the engine and `iptables -F`. A table of ours stays.
"""

from __future__ import annotations

import logging
import threading

from shim.wires import rules
from shim.wires.namespace import Namespace, WireError

log = logging.getLogger(__name__)


class Bridges:
    """The table of one shim. Blocking; `namespace` is the engine's, and its owner closes it."""

    def __init__(self, install_id: str, namespace: Namespace) -> None:
        self._table = rules.Names(install_id).bridges
        self._namespace = namespace
        self._lock = threading.Lock()
        self._why_not: str | None = None

    def keep_apart(self) -> None:
        """Write the table, also over one that is there.

        Without it the engine's own rules remain, so a node that cannot have it is only told.
        """
        try:
            with self._lock:
                self._namespace.run("nft", "-f", "-", given=rules.bridges(self._table))
        except WireError as error:
            if self._why_not != str(error):
                log.warning("only the engine keeps the networks of runs apart: %s", error)
            self._why_not = str(error)
        else:
            self._why_not = None

    def leave(self) -> None:
        """Remove the table: no run has a network any more."""
        self._namespace.answers("nft", "delete", "table", "inet", self._table)
