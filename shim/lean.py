"""What is left out so that a shim which was killed is back soon: importing this first saves a
quarter of the CPU time until its first answer.

The shim speaks over unix sockets and never needs TLS, but aiohttp reads the machine's certificates
when it finds it; without it aiohttp goes on. The Docker client loads TLS for itself afterwards.

Looking for garbage among modules that are being loaded finds none; `settle` begins it, without ever
looking at them again.
"""

from __future__ import annotations

import gc
import sys

_is_lean = "ssl" not in sys.modules
if _is_lean:
    gc.disable()
    sys.modules["ssl"] = None  # type: ignore[assignment]  # import then raises ImportError


def settle() -> None:
    """All modules are loaded."""
    if _is_lean:
        for name in ("ssl", "http.client", "urllib.request"):
            # The latter two have nothing of TLS now: whoever wants them later wants it with them.
            sys.modules.pop(name, None)
        gc.freeze()
        gc.enable()
