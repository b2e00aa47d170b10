"""Run one proof: it prints its figures as a table and fails when the promise is broken."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from bench import proofs
from bench.parts import unwind_on_sigterm


def main() -> None:
    names = sorted(module.name for module in pkgutil.iter_modules(proofs.__path__))
    names = [name for name in names if not name.startswith("_")]
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        raise SystemExit(f"usage: ./dev prove NAME [OPTIONS]; NAME is one of: {', '.join(names)}")
    unwind_on_sigterm()
    name = sys.argv.pop(1)
    sys.argv[0] = f"./dev prove {name}"
    importlib.import_module(f"bench.proofs.{name}").main()


if __name__ == "__main__":
    main()
