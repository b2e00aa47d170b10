"""The processes that play worlds side by side."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from typing import TypeVar

from tests.simulation import tracing

T = TypeVar("T")

FEW = 2
"""Seeds for each process that are handed out ahead."""


def each(play: Callable[[int], T], seeds: Iterable[int], workers: int) -> Iterator[T]:
    """In the order of their seeds."""
    if workers == 1:
        yield from map(play, seeds)
        return
    results: dict[Future[T], int] = {}
    waiting: set[Future[T]] = set()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=begin) as pool:
        for number, seed in enumerate(seeds):
            future = pool.submit(play, seed)
            results[future] = number
            waiting.add(future)
            if len(waiting) >= FEW * workers:
                _, waiting = wait(waiting, return_when=FIRST_COMPLETED)
    yield from (future.result() for future in sorted(results, key=results.__getitem__))


def begin() -> None:
    """In each process of the pool: it ends with the one that it works for, however that ends."""
    tracing.begin()
    parent = parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
