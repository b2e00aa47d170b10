"""Time that jumps: an event loop on which hours pass in seconds and one seed gives one story.

Nothing really sleeps: when no callback is ready, the clock moves to the next timer. Work for
threads is done in the loop, at a virtual moment of its own. Processes are `Life`s: killing one
stops all of its tasks at once and for good, with no cleanup, as `kill -9` does; pausing one stops
them until it is resumed, as SIGSTOP and a machine that hangs do.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
import weakref
from asyncio import AbstractEventLoop, Handle, TimerHandle
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, TypeVar, TypeVarTuple

from controller.clock import Chance

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_750_000_000.0
"""The simulated clocks' time at the start, in Unix seconds."""
SLOW_WORK = 0.1
"""Share of the work for threads that takes noticeable time."""
SLOWEST_WORK_SECONDS = 0.3


class Deadlock(Exception):
    """Everybody waits and no timer is set: nothing can ever happen again."""


class Life:
    """One life of a simulated process. Tasks that are started in `context` belong to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.context = copy_context()
        self.context.run(_LIFE.set, self)
        self.frozen: list[asyncio.Task[Any]] = []
        """Kept from the garbage collector, which would make a killed process do its cleanup."""
        self.withheld: list[tuple[Callable[..., Any], tuple[Any, ...], Context]] = []
        self.paused = False
        self.backlog: list[Any] = []
        """Callbacks that would have run while it was paused, and its timers."""

    def __repr__(self) -> str:
        return f"<life {self.name}{' (dead)' if self.dead else ''}>"


_LIFE: ContextVar[Life | None] = ContextVar("life", default=None)


class _JumpingSelector(selectors.DefaultSelector):
    """There is no real I/O to wait for, so waiting is moving the clock."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("nothing is left that could happen")
        self._jump(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, chance: Random) -> None:
        self._now = 0.0
        self._chance = chance
        self._countdowns: dict[Life, tuple[int, Callable[[], None]]] = {}
        super().__init__(_JumpingSelector(self._pass))
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._now

    def _pass(self, seconds: float) -> None:
        self._now += seconds

    # -- lives --------------------------------------------------------------------------------

    def spawn(
        self, life: Life, work: Coroutine[Any, Any, T], name: str | None = None
    ) -> asyncio.Task[T]:
        return life.context.copy().run(lambda: self.create_task(work, name=name))

    def kill(self, life: Life) -> None:
        """None of its tasks takes another step; what they held open stays as it is."""
        life.dead = True
        self.forget_steps(life)
        life.frozen = list(life.tasks)
        life.paused, backlog, life.backlog = False, life.backlog, []
        for handle in [*backlog, *self._handles_of(life)]:
            if not handle.cancelled():
                if not isinstance(handle, TimerHandle):
                    # Kept for `bury`: a task whose wake-up is gone could never end.
                    life.withheld.append((handle._callback, handle._args, handle._context))
                handle.cancel()

    def pause(self, life: Life) -> None:
        """None of its tasks takes another step before `resume`; what comes for it is kept."""
        life.paused = True
        life.backlog = self._handles_of(life)
        held = set(map(id, life.backlog))
        ready, timers = self._ready, self._scheduled  # type: ignore[attr-defined]
        # In its place, one that does nothing: the loop has counted those of this round.
        kept = [handle if id(handle) not in held else self._nothing() for handle in ready]
        ready.clear()
        ready.extend(kept)
        timers[:] = [timer for timer in timers if id(timer) not in held]
        heapq.heapify(timers)
        for handle in life.backlog:
            if isinstance(handle, TimerHandle):
                # Else asyncio would count a cancelled one among those of its heap.
                handle._scheduled = False  # type: ignore[attr-defined]

    def _nothing(self) -> Handle:
        return _cancelled(Handle(lambda: None, (), self, Context()))

    def resume(self, life: Life) -> None:
        """All that came meanwhile happens at once, in its order; overdue timers after it."""
        life.paused, backlog, life.backlog = False, life.backlog, []
        for handle in backlog:
            if handle.cancelled():
                continue
            if isinstance(handle, TimerHandle):
                heapq.heappush(self._scheduled, handle)  # type: ignore[attr-defined]
                handle._scheduled = True  # type: ignore[attr-defined]
            else:
                self._ready.append(handle)  # type: ignore[attr-defined]

    def after_steps(self, life: Life, steps: int, action: Callable[[], None]) -> None:
        """Do it when the life is about to take so many more steps: between two of its awaits."""
        self._countdowns[life] = (steps, action)

    def forget_steps(self, life: Life) -> None:
        """Undo `after_steps`."""
        self._countdowns.pop(life, None)

    def _handles_of(self, life: Life) -> list[Any]:
        """All that is ready to run, and its timers."""
        waiting = [*self._ready, *self._scheduled]  # type: ignore[attr-defined]
        return [handle for handle in waiting if handle._context.get(_LIFE) is life]

    def _count(self, life: Life) -> None:
        if life not in self._countdowns:
            return
        steps, action = self._countdowns.pop(life)
        if steps > 1:
            self._countdowns[life] = (steps - 1, action)
        else:
            # In an empty context it belongs to no life, not even to the one that it kills.
            super().call_soon(action, context=Context())

    async def bury(self, life: Life) -> None:
        """Let a killed life's tasks end tidily, once nobody looks any more."""
        life.dead = False
        for callback, args, context in life.withheld:
            self.call_soon(callback, *args, context=context)
        life.frozen = []
        while pending := [task for task in life.tasks if not task.done()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Handle:
        life = _life_of(context)
        if life is not None and life.dead:
            context = context or copy_context()
            life.withheld.append((callback, args, context))
            return _cancelled(Handle(callback, args, self, context))
        handle = super().call_soon(callback, *args, context=context)
        if life is not None:
            if life.paused:
                life.backlog.append(self._ready.pop())  # type: ignore[attr-defined]
            self._count(life)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> TimerHandle:
        timer = super().call_at(when, callback, *args, context=context)
        life = _life_of(context)
        if life is not None and life.dead:
            timer.cancel()
        return timer

    # -- threads ------------------------------------------------------------------------------

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Mostly done at once; sometimes late, and then even when nobody waits for it any more."""
        future: asyncio.Future[T] = self.create_future()
        if self._chance.random() < SLOW_WORK:
            delay = self._chance.uniform(0.0, SLOWEST_WORK_SECONDS)
            self.call_later(delay, _work, func, args, future, self)
        else:
            _work(func, args, future, self)
        return future


def _make_task(loop: AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, **options)
    life = _life_of(options.get("context"))
    if life is not None:
        life.tasks.add(task)
    return task


def _life_of(context: Context | None) -> Life | None:
    return _LIFE.get() if context is None else context.get(_LIFE)


def _cancelled(handle: Handle) -> Handle:
    handle.cancel()
    return handle


def _work(
    func: Callable[..., T], args: tuple[Any, ...], future: asyncio.Future[T], loop: VirtualLoop
) -> None:
    try:
        result = func(*args)
    except Exception as error:
        loop.call_soon(_settle, future, None, error)
    else:
        loop.call_soon(_settle, future, result, None)


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class VirtualClock:
    """One machine's time of day; `jumped` is by how much it is wrong."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self.jumped = 0.0

    def now(self) -> float:
        return EPOCH + self._loop.time() + self.jumped


def seeded_chance(source: Random) -> Chance:
    return Chance(
        new_id=lambda: f"{source.getrandbits(64):016x}",
        jitter=lambda: source.uniform(-1.0, 1.0),
    )
