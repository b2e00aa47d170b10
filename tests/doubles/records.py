"""Records in memory, and records whose disk misbehaves."""

from __future__ import annotations

from typing import Generic, TypeVar

from shim.state.records import Loaded, RecordBooks, TaskRecord

T = TypeVar("T")


class MemoryRecords(Generic[T]):
    """For tests: as durable as the object itself. `saves` counts the writes."""

    def __init__(self) -> None:
        self.kept: dict[str, T] = {}
        self.saves = 0

    async def save(self, key: str, record: T) -> None:
        self.saves += 1
        self.kept[key] = record

    async def delete(self, key: str) -> None:
        self.kept.pop(key, None)

    async def load(self) -> Loaded[T]:
        return Loaded(dict(self.kept), ())


class FailingRecords(MemoryRecords[T]):
    """A disk that is full: nothing new can be kept, what is there can be read and removed."""

    async def save(self, key: str, record: T) -> None:
        raise OSError(28, "No space left on device")


def books_in_memory() -> RecordBooks:
    return RecordBooks(MemoryRecords(), MemoryRecords(), MemoryRecords())


class MoodyRecords(MemoryRecords[TaskRecord]):
    """A disk that is full while `is_full`."""

    is_full = False

    async def save(self, key: str, record: TaskRecord) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        await super().save(key, record)
