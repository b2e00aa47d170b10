"""Makes the runtime's ELF files find each other and nothing of the image.

DT_RPATH is used, never DT_RUNPATH: only DT_RPATH comes before an image's LD_LIBRARY_PATH. The
loader is a copy whose built-in paths lead nowhere, so it does not read the image's
/etc/ld.so.preload, /etc/ld.so.cache and default folders.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from entrypoint.runtime.errors import BuildError, run
from entrypoint.runtime.platform import Platform

_MAGIC = b"\x7fELF"
_DYNAMIC = re.compile(r"\((NEEDED|SONAME|RPATH|RUNPATH)\).*?\[(.*)\]")
_NEVER_PATCHED = ("ld-linux", "libc.so.")


@dataclass(frozen=True)
class Dynamic:
    """The entries of a file's dynamic section that decide what is loaded."""

    needed: tuple[str, ...]
    soname: str | None
    rpath: str | None
    runpath: str | None


def is_elf(file: Path) -> bool:
    if file.is_symlink() or not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(4) == _MAGIC


def elf_files(root: Path) -> Iterator[Path]:
    return (file for file in sorted(root.rglob("*")) if is_elf(file))


def dynamic(file: Path) -> Dynamic:
    entries: dict[str, list[str]] = {}
    for tag, value in _DYNAMIC.findall(run(["readelf", "-d", file])):
        entries.setdefault(tag, []).append(value)

    def single(tag: str) -> str | None:
        return next(iter(entries.get(tag, [])), None)

    return Dynamic(
        tuple(entries.get("NEEDED", [])), single("SONAME"), single("RPATH"), single("RUNPATH")
    )


def copy_needed_libraries(users: Iterable[Path], found_in: list[Path], into: Path) -> None:
    """Copy every library that `users` need in the end into one flat folder, under its SONAME.

    Libraries next to a user (a wheel's own) stay there. Raises BuildError for a library that is in
    none of the folders.
    """
    open_files = list(users)
    beside = {file.name for file in open_files}
    while open_files:
        for name in dynamic(open_files.pop()).needed:
            if name in beside or (into / name).exists():
                continue
            source = next((f / name for f in found_in if (f / name).exists()), None)
            if source is None:
                raise BuildError(f"no package has {name}")
            # A SONAME is a link to the file with the whole version (ldconfig(8)).
            shutil.copyfile(source.resolve(), into / name)
            open_files.append(into / name)


def set_rpaths(root: Path, libraries: Path) -> None:
    for file in elf_files(root):
        if file.name.startswith(_NEVER_PATCHED):
            continue
        ours = "$ORIGIN/" + os.path.relpath(libraries, file.parent)
        old = dynamic(file)
        # A wheel brings libraries of its own beside it, such as `$ORIGIN/../NAME.libs`
        # (auditwheel).
        kept = [part for part in (old.rpath or old.runpath or "").split(":") if "$ORIGIN" in part]
        rpath = ":".join(dict.fromkeys([*kept, ours]))
        run(["patchelf", "--force-rpath", "--set-rpath", rpath, file])


def set_interpreter(program: Path, interpreter: str) -> None:
    run(["patchelf", "--set-interpreter", interpreter, program])


def blind_loader(loader: Path, platform: Platform) -> None:
    """Change the loader's built-in paths without changing their length: the first letter becomes a
    byte that no image's path has."""
    for text in _built_in_paths(platform):
        _replace(loader, text, _blinded(text))


def open_loader(loader: Path, platform: Platform) -> None:
    """Undo `blind_loader` for a program that needs the machine's libraries besides its own, such as
    the driver's.

    Libraries that the machine preloads into all programs stay out.
    """
    for text in _built_in_paths(platform)[1:]:
        _replace(loader, _blinded(text), text)


def _built_in_paths(platform: Platform) -> tuple[bytes, ...]:
    triplet = platform.triplet.encode()
    folders = b"/lib/%b/\0/usr/lib/%b/\0/lib/\0/usr/lib/\0" % (triplet, triplet)
    return b"/etc/ld.so.preload\0", b"/etc/ld.so.cache\0", folders


def _blinded(text: bytes) -> bytes:
    return re.sub(rb"(^|\0)/.", b"\\1/\x01", text)


def _replace(loader: Path, old: bytes, new: bytes) -> None:
    content = loader.read_bytes()
    if old not in content:
        raise BuildError(f"{loader.name} has changed: it holds no {old!r}")
    loader.write_bytes(content.replace(old, new))


def violations(root: Path) -> list[str]:
    """Return what would load an image's file into our processes; empty when the runtime is
    hermetic."""
    found = []
    for file in elf_files(root):
        entry, name = dynamic(file), str(file.relative_to(root))
        # An image's LD_LIBRARY_PATH comes before a RUNPATH, and after an RPATH (ld.so(8)).
        if entry.runpath is not None:
            found.append(f"{name} has a RUNPATH: {entry.runpath}")
        folders = [
            Path(os.path.normpath(part.replace("$ORIGIN", str(file.parent))))
            for part in (entry.rpath or "").split(":")
            if part
        ]
        found += [
            f"{name} looks for libraries in {folder}"
            for folder in folders
            if not folder.is_relative_to(root)
        ]
        search = folders or [root / "lib"]
        found += [
            f"{name} needs {needed}, which is not in the runtime"
            for needed in entry.needed
            if not any((folder / needed).is_file() for folder in search)
        ]
    return found
