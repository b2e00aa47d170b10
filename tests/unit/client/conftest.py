"""The client against the real API; the node's part is played."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aiohttp.test_utils import TestServer

from fairlead import Client
from tests.unit.api.conftest import ADMIN_TOKEN, controller, server
from tests.unit.cli.conftest import node

__all__ = ["controller", "node", "server"]


@pytest.fixture
def told() -> list[str]:
    """The client's remarks."""
    return []


@pytest.fixture
def client(server: TestServer, told: list[str]) -> Iterator[Client]:
    """The admin's; it blocks, so tests call it in threads."""
    with Client(str(server.make_url("")), ADMIN_TOKEN, tell=told.append) as made:
        yield made
