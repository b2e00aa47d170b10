"""The room on the disk of the controller's data folder."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric

from controller.store.base import is_full

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class Disk:
    """Measures the disk of this folder. `free`: bytes; None: they are not known. `measured` is
    called with them."""

    def __init__(self, data: Path, measured: Callable[[int | None], None] = lambda _: None) -> None:
        self.free: int | None = None
        self._data = data
        self._measured = measured

    @property
    def is_full(self) -> bool:
        return is_full(self.free)

    async def look(self) -> None:
        was_full = self.is_full
        try:
            # In a thread: the folder may be on a network's disk that hangs.
            self.free = (await asyncio.to_thread(shutil.disk_usage, self._data)).free
        # A new installation has no folder yet.
        except OSError:
            self.free = None
        self._measured(self.free)
        if self.is_full and not was_full:
            log.warning(
                "the disk of %s is full (%d MiB are free): logs wait at nodes, and uploads are "
                "refused. Remove files there, or shorten --keep-logs and --keep-outputs",
                self._data,
                (self.free or 0) >> 20,
            )
        elif was_full and not self.is_full:
            log.warning("the disk of %s has room again", self._data)

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def families(self) -> Iterator[Metric]:
        """Yield what Prometheus is shown."""
        if self.free is not None:
            text = "Free bytes of the disk with the controller's data folder"
            yield GaugeMetricFamily("fairlead_disk_free_bytes", text, self.free)
