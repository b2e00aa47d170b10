"""One wheel of this checkout for all of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.installed import Environment, build_wheel, copy_checkout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy_checkout(folder / "checkout"), folder / "out")


@pytest.fixture(scope="session")
def for_users(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install fairlead` makes."""
    return Environment(tmp_path_factory.mktemp("users") / "venv", wheel)


@pytest.fixture(scope="session")
def for_operators(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install 'fairlead[controller]'` makes."""
    return Environment(tmp_path_factory.mktemp("operators") / "venv", wheel, "controller")
