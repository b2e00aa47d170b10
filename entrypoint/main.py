"""`fairlead-entrypoint`: the first process of a job's container.

It listens before it loads its larger part, so a request that comes meanwhile waits and is not
refused. SIGTERM waits too: without a handler, a first process would lose it.

What it does not need stays out of this process, because each job pays for it: TLS (it serves a unix
socket; without `ssl` and `_hashlib`, asyncio and hashlib still work), `typing_extensions`, which
msgspec takes only if it is there, and the decimals and UUIDs that no message has. Nothing that is
loaded becomes garbage, so the collector waits until everything is there. `python -m
bench.runner_start` shows what each of this saves, and `tests/unit/entrypoint/test_imports.py` lists
what must not be loaded.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

PROGRAM = "fairlead-entrypoint"
LEFT_OUT = ("ssl", "_hashlib", "typing_extensions")
UNUSED_TYPES = {"decimal": ("Decimal",), "uuid": ("UUID", "SafeUUID")}
"""Types of which no message of a runner has a value, by module."""


def leave_out() -> None:
    """Make an import of these modules fail from now on, as if they were not installed, and load
    msgspec without what it does not need."""
    for module in LEFT_OUT:
        sys.modules.setdefault(module, None)  # type: ignore[arg-type]
    _load_msgspec()


def _load_msgspec() -> None:
    """Load msgspec, which loads modules to know their types, with other types in their place. Later
    imports get the modules themselves.

    With `_datetime` for `datetime`, whose names are all from there, and with what `module_file`
    puts off, that saves each job 4 of 52 ms, three shared libraries and 1 MiB (`./dev bench`,
    "runner: CPU time until its first answer").
    """
    # A private name, but a whole one: from Python 3.12 on, `datetime` is an import of all of it.
    import _datetime  # type: ignore[import-not-found]

    sys.modules.setdefault("datetime", _datetime)
    stand_ins = [name for name in UNUSED_TYPES if name not in sys.modules]
    for name in stand_ins:
        module = ModuleType(name)
        for unused in UNUSED_TYPES[name]:
            setattr(module, unused, type(unused, (), {"unknown": None}))
        sys.modules[name] = module
    try:
        import msgspec  # noqa: F401
    finally:
        for name in stand_ins:
            del sys.modules[name]


def main(argv: Sequence[str] | None = None) -> None:
    """Live the life of a job's first process, and exit. `argv`: its options, by default those of
    the command line."""
    # Pid 1 ignores a signal that it does not handle yet (pid_namespaces(7)); a blocked one waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    gc.disable()
    leave_out()

    from runner.options import complain, parse
    from runner.sockets import SocketUnusable, listen

    options = parse(PROGRAM, argv)
    try:
        listener = listen(options.socket)
    except SocketUnusable as error:
        sys.exit(complain(PROGRAM, str(error)))

    from entrypoint import life

    # What is loaded by now lives as long as this process: no later collection looks at it.
    gc.freeze()
    gc.enable()
    life.run(PROGRAM, options, listener)


if __name__ == "__main__":
    main()
