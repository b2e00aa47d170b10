"""The code of the modules that a job's first process loads, in one file.

The build of the runtime writes it (`entrypoint/runtime/write_module_file.py`). To look for each of
180 modules in three folders and to open its file took 11 of the 63 ms of CPU time until they were
loaded. Without the file, as in a checkout, modules are found as usual.

Others are imported and hardly ever used: `LATER`. Their code runs when they are first asked for
something, which saves each job 9 of 54 ms and 1.1 MiB (`./dev bench`, "runner: CPU time until its
first answer").

Nothing may be imported here that is no part of the interpreter itself: it would be looked for.
"""

from __future__ import annotations

import marshal
import posix
import sys
from _thread import RLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

PATH = "modules"
"""The file's path, in the folder of the standard library, where imports look first."""
LATER = frozenset(
    (
        *("asyncio.sslproto", "asyncio.staggered", "inspect", "ipaddress", "linecache", "locale"),
        *("msgspec.inspect", "ntpath", "shlex", "textwrap", "tokenize"),
    )
)
"""Modules of which a job's first process needs nothing as long as nothing fails. None of them is a
package, and none imports at its top level what is loaded later than `entrypoint.life` and uses one
of these while it loads: two threads could wait for each other."""


def _function_of(module: str, name: str) -> Callable[..., object]:
    """Return a function that runs the module's code when it is called, and calls its own."""

    def call(*given: object, **named: object) -> object:
        code = sys.modules[module]
        _ = code.__all__  # to ask for what it doesn't have runs its code
        function: Callable[..., object] = getattr(code, name)
        return function(*given, **named)

    return call


GIVEN = {"traceback": "extract_stack", "urllib.parse": "quote_from_bytes"}
"""More of such modules, each with the one function that another one takes while it loads: asyncio
for its debug mode, `pathlib` for paths as URLs."""
_SIZE_BYTES = 4
_SPEC: Callable[..., ModuleSpec] = type(__spec__)


def use() -> ModuleFile | None:
    """Let imports of this process find modules in the file; None: there is none."""
    try:
        found = ModuleFile(f"{sys.path[0]}/{PATH}")
    except OSError:
        return None
    sys.meta_path.insert(0, found)
    return found


class ModuleFile:
    """Finds and loads the modules of a file: importlib's protocols of a finder and of a loader.

    Raises OSError. The file stays open until `close`, after which no module is found.
    """

    def __init__(self, path: str) -> None:
        self._file = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        size = int.from_bytes(self._read(_SIZE_BYTES, 0), "big")
        index: Mapping[str, tuple[str, bool, int, int]] = marshal.loads(
            self._read(size, _SIZE_BYTES)
        )
        self._modules = index
        self._begin = _SIZE_BYTES + size

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        source, is_package, _, _ = self._modules[name]
        spec = _SPEC(name, self, origin=source, is_package=is_package)
        if spec.submodule_search_locations is not None:
            # A module of the package that is not in the file is found in its folder.
            spec.submodule_search_locations.append(source.rpartition("/")[0])
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._modules[module.__name__][0]
        if (function := GIVEN.get(module.__name__)) is not None:
            module.__dict__[function] = _function_of(module.__name__, function)
        if module.__name__ in LATER or module.__name__ in GIVEN:
            self._put_off(module)
        else:
            self._execute(module)

    def _put_off(self, module: ModuleType) -> None:
        """Let the module run its code when an attribute is asked for that it doesn't have (PEP
        562)."""
        content, lock, runs = module.__dict__, RLock(), False

        def load(name: str) -> object:
            nonlocal runs
            # An import asks each module for it, to learn whether it is a package.
            if name == "__path__":
                raise AttributeError(name)
            with lock:
                if content.get("__getattr__") is load and not runs:
                    runs = True
                    try:
                        self._execute(module)
                    finally:
                        runs = False
                    # Only now: until then other threads wait here.
                    if content.get("__getattr__") is load:
                        del content["__getattr__"]
            try:
                return content[name]
            except KeyError:
                why = f"module {module.__name__!r} has no attribute {name!r}"
                raise AttributeError(why) from None

        content["__getattr__"] = load

    def _execute(self, module: ModuleType) -> None:
        _, _, at, size = self._modules[module.__name__]
        # Piece by piece: threads may import at once, and the whole would stay in memory.
        code: CodeType = marshal.loads(self._read(size, self._begin + at))
        exec(code, module.__dict__)

    def close(self) -> None:
        self._modules = {}
        posix.close(self._file)

    def _read(self, size: int, at: int) -> bytes:
        return posix.pread(self._file, size, at)


def content(modules: Mapping[str, tuple[str, bool, bytes]]) -> bytes:
    """Return the content of a file with these modules. Of each: the path of its source, whether it
    is a package, and its marshalled code."""
    index, at = {}, 0
    for name, (source, is_package, code) in modules.items():
        index[name] = (source, is_package, at, len(code))
        at += len(code)
    head = marshal.dumps(index)
    codes = b"".join(code for _, _, code in modules.values())
    return len(head).to_bytes(_SIZE_BYTES, "big") + head + codes
