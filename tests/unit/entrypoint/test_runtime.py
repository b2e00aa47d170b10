"""What the runtime is built without."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.imports import IMPORT_ALL, ON_NODES, imported_by, stripped_modules
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
