"""What is left out so that a job starts fast: importing this first saves 7 MiB and 55 ms per job.

The runner speaks over a unix socket and never needs TLS, but asyncio and aiohttp load it when they
find it (and aiohttp then reads the machine's certificates); without it both go on, and hashlib uses
the interpreter's own algorithms.

Looking for garbage among modules that are being loaded finds none; `settle` begins it, without ever
looking at them again.
"""

from __future__ import annotations

import gc
import sys

gc.disable()
for _module in ("ssl", "_hashlib"):
    if _module not in sys.modules:
        sys.modules[_module] = None  # type: ignore[assignment]  # import then raises ImportError


def settle() -> None:
    """All modules are loaded."""
    gc.freeze()
    gc.enable()
