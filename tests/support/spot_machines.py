"""A provider for `type: exec` with one spot machine's type and one on demand. Its machines are
shims of this host (`examples/machines/processes.py`); those of spot machines ask for a recall.

    python -m tests.support.spot_machines --folder FOLDER --shim SHIM --recalled-shim SHIM
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from tests.support.ssh_daemon import CHECKOUT

_PROGRAM = CHECKOUT / "examples/machines/processes.py"
OFFERS = {
    "cheap": {"cpu": 1, "price": 0.1, "spot": True},
    "steady": {"cpu": 1, "price": 0.3},
}


def main() -> None:
    spec = importlib.util.spec_from_file_location("processes", _PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    processes: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(processes)
    at = sys.argv.index("--recalled-shim")
    recalled = sys.argv[at + 1]
    del sys.argv[at : at + 2]

    class Machines(processes.Machines):  # type: ignore[misc]
        def create(self, wish: dict[str, Any]) -> Any:
            if wish["spot"]:
                self.shim = recalled
            return super().create(wish)

    processes.OFFERS, processes.Machines = OFFERS, Machines
    processes.main()


if __name__ == "__main__":
    main()
