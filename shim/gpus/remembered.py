"""Remembers which GPUs this machine had: one that is gone when the shim starts was lost.

A GPU is remembered when it is first listed. It is forgotten when its operator says so, or when a
new card sits in its place. If the record is damaged, or older than this feature, its name and the
tasks with the GPU are enough.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from fairlead.wire.node import GpuInfo
from shim.gpus.selection import normal_pci
from shim.state.records import Records

log = logging.getLogger(__name__)
_WHOLE = "GPU-"


class RememberedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as it was offered: itself, or its MIG instances."""

    units: tuple[GpuInfo, ...]


class RememberedGpus:
    """The remembered GPUs, by the UUID of the whole GPU."""

    def __init__(self, records: Records[RememberedGpu]) -> None:
        self._records = records
        self._entries: dict[str, RememberedGpu] = {}
        self._kept: dict[str, RememberedGpu] = {}
        self._held: frozenset[str] = frozenset()

    async def load(self, held: Iterable[str]) -> None:
        """Load the record. `held` are the GPUs of live tasks, instances or whole. Raises
        OSError."""
        loaded = await self._records.load()
        self._kept = {uuid: entry for uuid, entry in loaded.records.items() if entry.units}
        self._entries = dict(self._kept)
        self._held = frozenset(held)
        known = {unit.uuid for entry in self._entries.values() for unit in entry.units}
        for uuid in (*loaded.damaged, *self._held):
            if uuid.startswith(_WHOLE) and uuid not in known:
                unknown = GpuInfo(uuid=uuid, index=0, name="unknown", memory=0)
                self._entries.setdefault(uuid, RememberedGpu(units=(unknown,)))

    def boards(self) -> tuple[GpuInfo, ...]:
        """Return the whole GPUs, split or not."""
        return tuple(
            msgspec.structs.replace(entry.units[0], uuid=uuid, parent=None)
            for uuid, entry in self._entries.items()
        )

    def units(self, board: str) -> tuple[GpuInfo, ...]:
        entry = self._entries.get(board)
        return () if entry is None else entry.units

    async def remember(self, listed: Iterable[GpuInfo]) -> None:
        """Remember the listed GPUs; what cannot be written now is written with a later listing."""
        units: dict[str, tuple[GpuInfo, ...]] = {}
        for gpu in listed:
            board = gpu.parent or gpu.uuid
            units[board] = (*units.get(board, ()), msgspec.structs.replace(gpu, links={}))
        now = {board: RememberedGpu(units=its) for board, its in units.items()}
        replaced = self._replaced_by(now)
        self._entries.update(now)
        changed = [uuid for uuid, entry in now.items() if self._kept.get(uuid) != entry]
        await asyncio.gather(*map(self._keep, changed), *map(self._drop, replaced))

    async def forget(self, board: str) -> None:
        """Forget a card. Raises OSError; then it is still known."""
        await self._records.delete(board)
        self._kept.pop(board, None)
        self._entries.pop(board, None)

    def _replaced_by(self, now: dict[str, RememberedGpu]) -> list[str]:
        """Return the cards that a new one replaces, because it sits in the same place.

        A cloud machine may come back with other cards, and a broken card may be replaced. A known
        card that only moved replaces nothing.
        """
        new = {_pci_of(entry) for uuid, entry in now.items() if uuid not in self._entries} - {None}
        return [
            uuid
            for uuid, entry in self._entries.items()
            if uuid not in now and uuid not in self._held and _pci_of(entry) in new
        ]

    async def _keep(self, board: str) -> None:
        entry = self._entries[board]
        try:
            await self._records.save(board, entry)
        except OSError as error:
            log.error("GPU %s is not remembered across a restart: %s", board, error)
        else:
            self._kept[board] = entry

    async def _drop(self, board: str) -> None:
        log.warning("GPU %s is forgotten: another one is in its place", board)
        try:
            await self.forget(board)
        except OSError as error:
            log.error("GPU %s is not forgotten: %s", board, error)


def _pci_of(entry: RememberedGpu) -> str | None:
    pci = entry.units[0].pci
    return None if pci is None else normal_pci(pci)
