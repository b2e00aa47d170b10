"""The wheels of this checkout, built once for all of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.installed import Environment, build_wheel, copy_checkout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("checkout") / "checkout")


@pytest.fixture(scope="session")
def client_wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(checkout, tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="session")
def daemons_wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(checkout / "daemons", tmp_path_factory.mktemp("daemons"))


@pytest.fixture(scope="session")
def for_users(client_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install fairlead` makes."""
    return Environment(tmp_path_factory.mktemp("users") / "venv", client_wheel)


@pytest.fixture(scope="session")
def for_operators(
    client_wheel: Path, daemons_wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """What `pip install . './daemons[controller]'` makes."""
    folder = tmp_path_factory.mktemp("operators") / "venv"
    return Environment(folder, client_wheel, daemons_wheel, "controller")


@pytest.fixture(scope="session")
def for_nodes(
    client_wheel: Path, daemons_wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """What `pip install . './daemons[node]'` makes."""
    return Environment(
        tmp_path_factory.mktemp("node") / "venv", client_wheel, daemons_wheel, "node"
    )
