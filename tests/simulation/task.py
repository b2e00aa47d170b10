"""The life of a task on a simulated node, from its acceptance to its end.

The shim drives it while it serves: what happens while it is down it sees when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import msgspec

from controller.clock import Clock
from fairlead.wire.shim import PullProgress, TaskInfo, TaskRequest, TaskStatus, TerminateRequest
from tests.doubles.shim import KeptTask, ShimState
from tests.simulation.container import Container
from tests.simulation.outputs import leaves_outputs
from tests.simulation.script import Start, start_of

PULL_SECONDS = (0.5, 8.0)
SLOW_PULL_SECONDS = (60.0, 400.0)


class SimulatedTask(KeptTask):
    def __init__(self, info: TaskInfo, request: TaskRequest) -> None:
        super().__init__(info, request)
        self.container: Container | None = None
        self.stop_ordered = asyncio.Event()
        self.driver: asyncio.Task[None] | None = None
        self.minder: asyncio.Task[None] | None = None
        self.has_credentials = asyncio.Event()
        self.forgot_credentials = asyncio.Event()
        self.give_credentials()

    def give_credentials(self) -> None:
        self.forgot_credentials.clear()
        self.has_credentials.set()

    def forget_credentials(self) -> None:
        """They were in the memory of a shim that has ended."""
        if self.request.registry_auth is not None:
            self.has_credentials.clear()
            self.forgot_credentials.set()

    @property
    def going(self) -> bool:
        container = self.container
        return not self.ended and (container is None or not container.ended.is_set())

    def order_stop(self, order: TerminateRequest) -> bool:
        counts = super().order_stop(order)
        if counts:
            self.stop_ordered.set()
        return counts


class TaskDriver:
    """`serving` and `engine` are set while shim and engine work; `images` have been pulled."""

    def __init__(
        self,
        clock: Clock,
        chance: Random,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        *,
        serving: asyncio.Event,
        engine: asyncio.Event,
        state: ShimState[SimulatedTask],
        started: Callable[[TaskInfo, Container], None],
    ) -> None:
        self.images: set[str] = set()
        self._clock = clock
        self._chance = chance
        self._spawn = spawn
        self._serving = serving
        self._engine = engine
        self._state = state
        self._started = started

    async def drive(self, task: SimulatedTask) -> None:
        stop = asyncio.ensure_future(task.stop_ordered.wait())
        work = asyncio.ensure_future(self._set_up(task))
        try:
            await asyncio.wait({stop, work}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            stop.cancel()
        if not work.done():
            work.cancel()
            assert task.stop is not None
            await self._finish(task, task.stop.reason, task.stop.message)
        elif (refused := work.result()) is not None:
            await self._finish(task, *refused)
        else:
            await self._watch(task)

    async def _set_up(self, task: SimulatedTask) -> tuple[str, str] | None:
        """None when the container was started, else why it was not."""
        chance, start = self._chance, start_of(task.request.image)
        await self._enter(task, TaskStatus.PREPARING)
        await asyncio.sleep(chance.uniform(0.01, 0.5))
        await self._enter(task, TaskStatus.PULLING)
        private = task.request.registry_auth is not None
        if private or task.request.image not in self.images:
            slow = start is Start.SLOW_PULL
            seconds = chance.uniform(*(SLOW_PULL_SECONDS if slow else PULL_SECONDS))
            if private:
                await self._pull_in_private(task, seconds)
            else:
                await asyncio.sleep(seconds)
            self._state.change(task, pull=PullProgress(downloaded=1, total=1))
            if start is Start.NO_SUCH_IMAGE:
                return "image_pull_failed", "there is no such image"
            self.images.add(task.request.image)
        await self._enter(task, TaskStatus.CREATING)
        await asyncio.sleep(chance.uniform(0.05, 1.0))
        if start is Start.CANNOT_CREATE:
            return "creating_container_error", "the engine refused the container"
        await self._engine.wait()
        await self._serving.wait()
        task.container = Container(task.info.id, start, self._clock, chance, self._spawn)
        self._started(task.info, task.container)
        await self._enter(task, TaskStatus.RUNNING)
        return None

    async def _pull_in_private(self, task: SimulatedTask, seconds: float) -> None:
        """It begins anew with each life of the shim, which has to ask for the password then."""
        while True:
            await self._serving.wait()
            if not task.has_credentials.is_set():
                self._state.change(task, needs_credentials=True)
                await task.has_credentials.wait()
                self._state.change(task, needs_credentials=False)
            try:
                async with asyncio.timeout(seconds):
                    await task.forgot_credentials.wait()
            except TimeoutError:
                return

    async def _watch(self, task: SimulatedTask) -> None:
        container = task.container
        assert container is not None
        stopper = self._spawn(self._stop_when_asked(task, container))
        announcer = self._spawn(self._announce_runner(task, container))
        try:
            await container.ended.wait()
        finally:
            announcer.cancel()
        stopper.cancel()
        await self._engine.wait()
        reason, message = None, None
        if task.stop is not None:
            reason, message = task.stop.reason, task.stop.message
        elif container.stopped_by_engine:
            reason, message = "instance_unreachable", "its engine stopped it"
        elif container.record is None and container.exit_code != 0:
            reason, message = "container_exited_with_error", "the container ended by itself"
        record = container.record
        await self._finish(
            task,
            reason,
            message,
            exit_code=container.exit_code,
            has_outputs=leaves_outputs(task.info.id),
            exit_record=None if record is None else msgspec.json.encode(record).decode(),
        )

    async def _announce_runner(self, task: SimulatedTask, container: Container) -> None:
        await container.listening.wait()
        await self._serving.wait()
        if not task.info.runner_listens:
            self._state.change(task, runner_listens=True)

    async def _stop_when_asked(self, task: SimulatedTask, container: Container) -> None:
        await task.stop_ordered.wait()
        if task.stop is not None and task.stop.grace > 0:
            container.terminate()
            await asyncio.sleep(task.stop.grace)
        container.kill()

    async def _finish(
        self, task: SimulatedTask, reason: str | None, message: str | None, **more: object
    ) -> None:
        await self._enter(task, TaskStatus.TERMINATED, reason=reason, message=message, **more)

    async def _enter(self, task: SimulatedTask, status: TaskStatus, **more: object) -> None:
        await self._serving.wait()
        self._state.enter(task, status, **more)
