"""Builds the runtime in two layers and keeps both, so that a change of Fairlead's sources costs
little.

`<build>/runtimes/<hash>` is named by its content, because containers keep an old one mounted while
a new one is used; `<build>/runtimes/current` is the newest. A runtime appears under its name
completely or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from entrypoint.runtime import base as base_layer
from entrypoint.runtime import elf
from entrypoint.runtime.base import Base
from entrypoint.runtime.errors import BuildError

OUR_SOURCES = (
    *("common", "entrypoint", "runner"),
    *("fairlead/__init__.py", "fairlead/version.py", "fairlead/wire"),
)
"""Of the client, only what the agents import."""
NOT_SHIPPED = (
    *("common/links", "common/proxy"),
    *("entrypoint/runtime", "runner/client.py"),
)
"""What is of no use where nothing is built, pip has installed nothing, and nobody asks agents."""
NOT_IN_CONTAINERS = (*NOT_SHIPPED, "common/http.py")
"""The runtime is also without what loads aiohttp."""


class Builder:
    def __init__(self, checkout: Path, build: Path) -> None:
        self._checkout = checkout
        self._build = build
        self._runtimes = build / "runtimes"
        self._bases = build / "runtime-bases"

    def build(self, *, force: bool = False) -> Path:
        """Build and return the folder of the current runtime. Raises BuildError."""
        self._runtimes.mkdir(parents=True, exist_ok=True)
        self._bases.mkdir(exist_ok=True)
        with self._only_one_at_a_time(), self._work_folder() as work:
            inputs = digest_of(self._base_inputs() + self._our_sources(), self._checkout)
            built_from = self._build / "runtime-inputs" / inputs
            if not force and built_from.exists():
                name = built_from.read_text()
                if (self._runtimes / name).is_dir():
                    return self._point_current_at(name)
            base = self._base(work, force=force)
            name = self._assemble(base, work)
            built_from.parent.mkdir(exist_ok=True)
            built_from.write_text(name)
            return self._point_current_at(name)

    def base(self) -> Base:
        """Return the layer below the current runtime. Raises BuildError."""
        self._bases.mkdir(parents=True, exist_ok=True)
        with self._only_one_at_a_time(), self._work_folder() as work:
            return self._base(work, force=False)

    def _base(self, work: Path, *, force: bool) -> Base:
        kept = self._bases / digest_of(self._base_inputs(), self._checkout)
        if force or not kept.is_dir():
            built = base_layer.build(work / "base", work)
            if kept.exists():
                shutil.rmtree(kept)
            built.root.rename(kept)
        program = next(kept.glob("bin/python3.*[0-9]"))
        return Base(kept, program.name.removeprefix("python"))

    def _assemble(self, base: Base, work: Path) -> str:
        tree = Base(work / "tree", base.python)
        shutil.copytree(base.root, tree.root, symlinks=True)
        for file in self._our_sources():
            target = tree.site / file.relative_to(self._checkout)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        tree.compile(packages_of(tree.site, OUR_SOURCES))
        tree.write_module_file()
        if violations := elf.violations(tree.root):
            raise BuildError("the runtime is not hermetic:\n" + "\n".join(violations))
        normalise(tree.root)
        name = tree_hash(tree.root)
        if not (self._runtimes / name).exists():
            tree.root.rename(self._runtimes / name)
        return name

    def _base_inputs(self) -> list[Path]:
        return sorted(
            file
            for file in base_layer.SOURCES.iterdir()
            if file.suffix in (".py", ".c", ".lock", ".txt")
        )

    def _our_sources(self) -> list[Path]:
        return sources_below(self._checkout, OUR_SOURCES, NOT_IN_CONTAINERS)

    def _point_current_at(self, name: str) -> Path:
        fresh = self._runtimes / ".current"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(name)
        # rename(2) replaces a link at once; symlink(2) cannot replace anything.
        fresh.replace(self._runtimes / "current")
        return self._runtimes / name

    @contextlib.contextmanager
    def _only_one_at_a_time(self) -> Iterator[None]:
        with (self._build / "runtime.lock").open("w") as lock:
            # The kernel frees it also when a build is killed (flock(2)).
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _work_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="runtime-", dir=self._build) as folder:
            Path(folder).chmod(0o755)
            yield Path(folder)


def sources_below(checkout: Path, sources: Iterable[str], left_out: Iterable[str]) -> list[Path]:
    """Return the files of these files and folders of a checkout, without those left out."""
    not_there = [checkout / path for path in left_out]
    return sorted(
        file
        for path in (checkout / source for source in sources)
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file()
        and "__pycache__" not in file.parts
        and not any(file.is_relative_to(folder) for folder in not_there)
    )


def packages_of(site: Path, sources: Iterable[str]) -> list[Path]:
    """Return the folders of the packages below `site` to which these sources belong."""
    return sorted({site / source.partition("/")[0] for source in sources})


def tree_hash(root: Path) -> str:
    """Return the hash of names, modes, links and bytes of everything below `root`."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        digest.update(f"{path.relative_to(root)}\0{mode:o}\0".encode())
        if path.is_symlink():
            digest.update(os.fsencode(path.readlink()))
        elif path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def digest_of(files: list[Path], checkout: Path) -> str:
    """Return the hash of the files' names below `checkout` and of their bytes, in this order."""
    digest = hashlib.sha256()
    for file in files:
        name = os.path.relpath(file, checkout)
        digest.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:32]


def normalise(root: Path) -> None:
    """Set modes and times to values that do not depend on the user and the time of the build."""
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (0, 0), follow_symlinks=False)
