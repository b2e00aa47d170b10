"""Steady load: clients that ask a service on and on while a test changes something below it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from tests.support.waiting import wait_until

Ask = Callable[[], tuple[int, str]]
"""Make one request; return its status and text. Raises OSError."""


class Load:
    """`failed` has what was no success; `seen` has the first words of all answers."""

    def __init__(self, ask: Ask) -> None:
        self._once = ask
        self._stop = threading.Event()
        self.failed: list[object] = []
        self.asked = 0
        self.seen: set[str] = set()

    def _ask(self, pause: float) -> None:
        while not self._stop.wait(pause):
            try:
                status, text = self._once()
            except OSError as error:
                self.failed.append(error)
                continue
            self.asked += 1
            self.seen.add(text.split()[0])
            if status != 200:
                self.failed.append((status, text))

    @contextlib.contextmanager
    def running(self, clients: int = 3, pause: float = 0.0) -> Iterator[None]:
        """`pause`: seconds that each client waits before each request."""
        threads = [threading.Thread(target=self._ask, args=(pause,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def wait_for(self, more: int) -> None:
        """Return after so many more requests, or once one has failed."""
        until = self.asked + more
        wait_until(lambda: self.asked >= until or self.failed, what=f"{more} more requests")
