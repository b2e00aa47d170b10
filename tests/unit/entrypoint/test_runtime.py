"""What the runtime is built without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.imports import (
    IMPORT_ALL,
    IN_CONTAINERS,
    ON_NODES,
    imported_by,
    shipped,
    stripped_modules,
)
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import LONG


def test_no_agent_imports_a_module_that_the_runtime_is_built_without() -> None:
    """Neither late nor through a library."""
    asked = json.dumps([imported_by(ON_NODES), stripped_modules()])
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        input=asked,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=True,
        cwd=CHECKOUT,
    )
    assert json.loads(done.stdout) == {}


@pytest.mark.parametrize("sources", [ON_NODES, IN_CONTAINERS])
def test_agents_import_no_module_of_ours_that_is_not_shipped_with_them(
    sources: tuple[str, ...],
) -> None:
    files = shipped(sources)
    ours = {file.relative_to(CHECKOUT).parts[0] for file in files}
    missing = {
        name
        for name in imported_by(sources)
        if name.split(".")[0] in ours and not _places(name) & files
    }
    assert missing == set()


def _places(module: str) -> set[Path]:
    place = CHECKOUT / module.replace(".", "/")
    return {place.with_suffix(".py"), place / "__init__.py"}
