"""The script of a simulated job, written into the job so that its node needs no other source.

The image says how the container's start goes, one variable of the environment how the job goes.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random

import msgspec

SPARED_EXIT_CODE = 75
"""With which a job says that it wants to be started again, where its spec agrees."""
SCRIPT_VARIABLE = "SIMULATED_SCRIPT"


class Start(StrEnum):
    """Part of the image's name."""

    FINE = "fine"
    SLOW_PULL = "slow-pull"
    NO_SUCH_IMAGE = "no-such-image"
    CANNOT_CREATE = "cannot-create"
    STILLBORN = "stillborn"
    """The container ends before its runner listens."""
    MUTE = "mute"
    """The container runs and its runner never listens."""


class OnStop(StrEnum):
    EXITS = "exits"
    CLEANS_UP = "cleans-up"
    """Writes for a while, then exits with 0."""
    COMES_BACK = "comes-back"
    """Exits with the code that asks for another start."""
    IGNORES = "ignores"


class Ending(StrEnum):
    EXITS = "exits"
    OUT_OF_MEMORY = "out-of-memory"
    TAKES_RUNNER_ALONG = "takes-runner-along"
    """The whole container dies, and no exit record is written."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    lines: int
    line_bytes: int
    exit_code: int = 0
    on_stop: OnStop = OnStop.EXITS
    ending: Ending = Ending.EXITS
    bad_luck: float = 0.0
    """The share of the attempts that end with exit code 1 before their time."""

    def of(self, task_id: str) -> Script:
        """As it goes for this very attempt: the jobs of a group share one script, not one fate."""
        luck = Random(task_id)
        if luck.random() >= self.bad_luck:
            return self
        return msgspec.structs.replace(
            self, seconds=self.seconds * luck.random(), exit_code=1, ending=Ending.EXITS
        )

    def env(self) -> dict[str, str]:
        return {SCRIPT_VARIABLE: msgspec.json.encode(self).decode()}


def script_from(env: dict[str, str]) -> Script:
    return msgspec.json.decode(env[SCRIPT_VARIABLE], type=Script)


def image_of(start: Start) -> str:
    return f"registry.example/{start.value}"


def start_of(image: str) -> Start:
    return Start(image.rpartition("/")[2])


def random_start(chance: Random) -> Start:
    return chance.choices(list(Start), weights=(70, 12, 5, 5, 4, 4))[0]


def random_script(chance: Random) -> Script:
    return Script(
        seconds=chance.choice((0.0, 0.5, 5.0, 45.0, 90.0, 400.0)) * chance.uniform(0.5, 1.5),
        lines=chance.choice((0, 1, 10, 60)),
        line_bytes=chance.choice((1, 80, 3000)),
        exit_code=chance.choices((0, 1, 7, 143), weights=(70, 15, 10, 5))[0],
        on_stop=chance.choice(list(OnStop)),
        ending=chance.choices(list(Ending), weights=(90, 5, 5))[0],
        bad_luck=chance.choices((0.0, 0.1, 0.5), weights=(50, 35, 15))[0],
    )
