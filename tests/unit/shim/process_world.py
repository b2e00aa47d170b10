"""The process engine on a machine of a test: another engine there is the next life of its shim."""

from __future__ import annotations

import uuid
from pathlib import Path

from shim.daemon import disk_threads
from shim.engines.process import ProcessEngine

RUN_SCRIPT = ("/bin/sh", "-c", 'exec /bin/sh "$2/script"', "entrypoint")


class ProcessWorld:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._threads = disk_threads()
        self._engines: list[ProcessEngine] = []
        self.install_id = uuid.uuid4().hex

    @property
    def engine(self) -> ProcessEngine:
        return self._engines[0]

    async def again(self) -> ProcessEngine:
        engine = ProcessEngine(self.folder / "data", self.install_id, self._threads, RUN_SCRIPT)
        await engine.open()
        self._engines.append(engine)
        return engine

    async def close(self) -> None:
        for engine in self._engines:
            for found in await engine.list():
                await engine.remove(found.task_id)
        self._threads.shutdown()
