"""Blocks: a node split in equal shares of CPU, memory and GPUs. Pure.

An allocation takes whole blocks, as many as its greatest need asks for, and gets all that is in
them, but for MIG instances that it has not asked for. One that takes all of them holds the whole
node. Disk is not split.
"""

from __future__ import annotations

from math import ceil
from typing import Literal

import msgspec

from shim.errors import StartError
from shim.schemas import TaskResources

AUTO: Literal["auto"] = "auto"
"""As many blocks as there are GPUs, also of a driver that comes late."""

Asked = int | Literal["auto"]

_TOLERANCE = 1e-6


class Blocks(msgspec.Struct, frozen=True):
    """`cpu` (cores), `memory` (bytes) and `gpus` are the whole node's. `has_instances`: of GPUs in
    MIG mode, which are given only to whoever asks for them."""

    count: int
    cpu: float
    memory: int
    gpus: int
    has_instances: bool = False

    def round_up(self, resources: TaskResources) -> TaskResources:
        """What whole blocks give for this need; the need itself where no number of them does."""
        number = max(
            self._shares(resources.cpu, self.cpu / self.count),
            self._shares(resources.memory, self.memory // self.count),
            self._shares(_gpus(resources), self.gpus // self.count),
            self.count if resources.whole_node else 1,
        )
        if number > self.count:
            return resources
        gpu = resources.gpu
        if self.gpus and not self.has_instances:
            gpu = msgspec.structs.replace(gpu, count=number * (self.gpus // self.count))
        return msgspec.structs.replace(
            resources,
            cpu=number * (self.cpu / self.count),
            memory=number * (self.memory // self.count),
            gpu=gpu,
            whole_node=number == self.count,
        )

    def _shares(self, need: float, share: float) -> int:
        if need <= 0:
            return 0
        return ceil(need / share - _TOLERANCE) if share > 0 else self.count + 1


def parse(text: str) -> Asked:
    """Of `--blocks`. Raises StartError."""
    if text == AUTO:
        return AUTO
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise StartError(f"--blocks {text!r}: expected a number from 1 on, or 'auto'")
    return int(text)


def check(asked: Asked | None, gpus: int) -> None:
    """Raises StartError when the GPUs cannot be shared equally."""
    if isinstance(asked, int) and gpus % asked:
        raise StartError(
            f"--blocks {asked}: {gpus} GPUs cannot be split in {asked} equal shares; "
            f"choose a number that divides {gpus}"
        )


def resolve(asked: Asked | None, gpus: int) -> int | None:
    """How many blocks a node with this many GPUs has."""
    return max(gpus, 1) if asked == AUTO else asked


def _gpus(resources: TaskResources) -> int:
    return max(resources.gpu.count, len(resources.gpu.uuids))
