"""The provider in memory keeps the promises of the real ones."""

from __future__ import annotations

import pytest

from controller.clouds.base import CloudAway, CloudError
from controller.lifecycle.machines.life import Place
from tests.doubles.clouds import MemoryCloud
from tests.support.cloud_contract import CloudContract, installation
from tests.unit.machines.parts import NOW, offer

__all__ = ["installation"]


class MemoryWorld:
    def __init__(self) -> None:
        self.offer = offer()
        self.cloud = MemoryCloud(self.offer)
        self.cloud.now = NOW
        self.cloud.place = Place(host="10.0.0.1")

    def refuse(self, error: type[CloudError]) -> None:
        self.cloud.fails["create"] = [error("eight are enough")]

    def lose(self) -> None:
        self.cloud.loses.append("create")
        self.cloud.fails["create"] = [CloudAway("no answer")]

    def cut(self) -> None:
        self.cloud.fails["list"] = [CloudAway("a page is missing")]


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


class TestContract(CloudContract):
    pass
