"""The OCI runtime is chosen once in each life of the shim, and a container waits for the choice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from fairlead.wire.shim import EngineKind, Finding
from shim.engines.docker.examination import Trial
from shim.engines.docker.oci_runtime import OciRuntime, to_try
from shim.errors import EngineError
from shim.examination import bad, ok
from shim.settings import AUTO_RUNTIME
from tests.unit.shim.parts import settings

T = TypeVar("T")
KNOWS_CRUN: dict[str, Any] = {"Runtimes": {"runc": {}, "crun": {}}, "DefaultRuntime": "runc"}
WORKS, FAILS = ok("a container with the runtime starts"), bad("a container ends with 1", "fix")


class Trials:
    """Takes the place of tried starts; each ends when `go_on` is set."""

    def __init__(self, result: Finding | EngineError) -> None:
        self.asked: list[tuple[str, Trial]] = []
        self.go_on = asyncio.Event()
        self._result = result

    def attempt(self, api: Any, folder: Path, runtime: str, trial: Trial) -> Finding:
        self.asked.append((runtime, trial))
        if isinstance(self._result, EngineError):
            raise self._result
        return self._result

    async def call(self, act: Callable[[], T]) -> T:
        await self.go_on.wait()
        return act()


def choice_with(trials: Trials, folder: Path, asked: str | None) -> OciRuntime:
    wanted = msgspec.structs.replace(settings(folder), oci_runtime=asked)
    return OciRuntime(wanted, "install", trials.attempt)


@pytest.mark.parametrize(
    ("result", "chosen"), [(WORKS, "crun"), (FAILS, None), (EngineError("refused"), None)]
)
async def test_auto_is_crun_only_after_a_start_that_worked(
    tmp_path: Path, result: Finding | EngineError, chosen: str | None
) -> None:
    trials = Trials(result)
    trials.go_on.set()
    choice = choice_with(trials, tmp_path, AUTO_RUNTIME)
    choice.open(trials.call, None, EngineKind.DOCKER, KNOWS_CRUN)
    assert [await choice.name(), await choice.name()] == [chosen, chosen]
    assert trials.asked == [("crun", Trial(name="fairlead-trial-install", limits=True))]
    await choice.close()


@pytest.mark.parametrize("asked", [None, "runc", "kata"])
async def test_a_named_runtime_is_not_tried(tmp_path: Path, asked: str | None) -> None:
    trials = Trials(WORKS)
    choice = choice_with(trials, tmp_path, asked)
    choice.open(trials.call, None, EngineKind.DOCKER, KNOWS_CRUN)
    assert await choice.name() == asked
    await choice.close()
    assert trials.asked == []


async def test_a_task_that_is_stopped_while_it_waits_ends_no_trial(tmp_path: Path) -> None:
    trials = Trials(WORKS)
    choice = choice_with(trials, tmp_path, AUTO_RUNTIME)
    choice.open(trials.call, None, EngineKind.DOCKER, KNOWS_CRUN)
    waiting = asyncio.create_task(choice.name())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    trials.go_on.set()
    assert await choice.name() == "crun"
    await choice.close()


async def test_a_shim_that_ends_during_the_trial_does_not_wait_for_it(tmp_path: Path) -> None:
    trials = Trials(WORKS)
    choice = choice_with(trials, tmp_path, AUTO_RUNTIME)
    choice.open(trials.call, None, EngineKind.DOCKER, KNOWS_CRUN)
    await choice.close()
    assert trials.asked == []


@pytest.mark.parametrize(
    ("kind", "info"),
    [
        (EngineKind.PODMAN, KNOWS_CRUN),
        (EngineKind.DOCKER, {**KNOWS_CRUN, "DefaultRuntime": "nvidia"}),
        (EngineKind.DOCKER, {**KNOWS_CRUN, "DefaultRuntime": "crun"}),
        (EngineKind.DOCKER, {"Runtimes": {"runc": {}}, "DefaultRuntime": "runc"}),
        (EngineKind.DOCKER, {}),
    ],
)
def test_the_operators_own_default_is_kept(kind: EngineKind, info: dict[str, Any]) -> None:
    assert to_try(kind, info) is None
    assert to_try(EngineKind.DOCKER, KNOWS_CRUN) == "crun"
