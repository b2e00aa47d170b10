"""The tree of a bundle: interpreter with the agents, runtime, system files, `install`.

The interpreter is the runtime's own base with the agents' packages and a loader that sees the
node's libraries (NVML belongs to its driver). Files that both have are links to one: the runtime
costs a node nearly nothing more. The version names the content, so that a node can hold two
bundles of one release, and go back.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from entrypoint.runtime import LAUNCHER, elf
from entrypoint.runtime import base as base_layer
from entrypoint.runtime.base import Base
from entrypoint.runtime.build import (
    NOT_SHIPPED,
    OUR_SOURCES,
    Builder,
    digest_of,
    normalise,
    packages_of,
    sources_below,
)
from entrypoint.runtime.errors import BuildError
from entrypoint.runtime.platform import current

INSTALLED = "/opt/fairlead"
_LOCK = "requirements-node.lock"
_KEPT = 3
_OWN_PACKAGES = ("shim", "installer")
_NOT_SHIPPED = (*NOT_SHIPPED, "installer/bundle")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SYSTEM_FILES = {
    "packer/systemd/fairlead-shim.service": "fairlead-shim.service",
    "packer/systemd/fairlead-firewall.service": "fairlead-firewall.service",
    "packer/firewall.nft": "firewall.nft",
    "packer/firewall-jobs.nft": "firewall-jobs.nft",
    "packer/sysctl.conf": "sysctl.conf",
    "cloud-init/sshd_fairlead.conf": "sshd_fairlead.conf",
}
_SCRIPTS = {"installer/install.sh": "install", "installer/shim.sh": "bin/fairlead-shim"}


@dataclass(frozen=True)
class Bundle:
    """A folder that is ready to be packed."""

    folder: Path
    version: str
    architecture: str


class BundleBuilder:
    def __init__(self, checkout: Path, build: Path) -> None:
        self._checkout = checkout
        self._build = build
        self._bases = build / "node-bases"

    def build(self, *, force: bool = False) -> Bundle:
        """Raises BuildError."""
        builder = Builder(self._checkout, self._build)
        runtime = builder.build(force=force)
        base = builder.base()
        self._bases.mkdir(exist_ok=True)
        with self._only_one_at_a_time(), self._work_folder() as work:
            version = f"{self._release()}+{self._content(runtime)}"
            target = self._build / "node-bundles" / version
            if target.exists() and not force:
                return Bundle(target, version, _ARCHITECTURES[current().machine])
            kept = self._node_base(base, work, force=force)
            tree = work / f"fairlead-node-{version}"
            self._fill(tree, kept, runtime, version)
            normalise(tree)
            share_files(tree / "runtime", tree / "python")
            shutil.rmtree(target, ignore_errors=True)
            _keep_newest(target.parent)
            tree.rename(target)
        return Bundle(target, version, _ARCHITECTURES[current().machine])

    def _release(self) -> str:
        project = tomllib.loads((self._checkout / "pyproject.toml").read_text())
        return str(project["project"]["version"])

    def _content(self, runtime: Path) -> str:
        """Eight digits of all inputs: the runtime is named by its content."""
        files = [
            *self._sources(),
            *(self._checkout / "installer/bundle").glob("*.py"),
            *(self._checkout / name for name in (_LOCK, "LICENSE", *_SYSTEM_FILES)),
        ]
        inputs = digest_of(sorted(files), self._checkout)
        return hashlib.sha256(f"{runtime.name} {inputs}".encode()).hexdigest()[:8]

    def _node_base(self, base: Base, work: Path, *, force: bool) -> Base:
        """Interpreter and locked packages; changes as seldom as the lock."""
        inputs = digest_of([self._checkout / _LOCK], self._checkout)
        kept = self._bases / f"{base.root.name}-{inputs}"
        if force or not kept.is_dir():
            fresh = Base(work / "base", base.python)
            shutil.copytree(base.root, fresh.root, symlinks=True)
            shutil.rmtree(fresh.site)
            (fresh.root / LAUNCHER).unlink()
            base_layer.install_wheels(fresh, self._checkout / _LOCK)
            elf.set_rpaths(fresh.site, fresh.libraries)
            fresh.compile([fresh.site])
            elf.open_loader(fresh.libraries / current().loader, current())
            if kept.exists():
                shutil.rmtree(kept)
            fresh.root.rename(kept)
        return Base(kept, base.python)

    def _fill(self, tree: Path, kept: Base, runtime: Path, version: str) -> None:
        python = Base(tree / "python", kept.python)
        shutil.copytree(kept.root, python.root, symlinks=True)
        shutil.copytree(runtime, tree / "runtime", symlinks=True)
        for file in self._sources():
            _copy(file, python.site / file.relative_to(self._checkout))
        python.compile(packages_of(python.site, OUR_SOURCES))
        home = f"{INSTALLED}/{version}/python"
        python.compile([python.site / package for package in _OWN_PACKAGES], home)
        self._write_metadata(python.site, version)
        elf.set_interpreter(python.program, f"{home}/lib/{current().loader}")
        if violations := elf.violations(python.root):
            raise BuildError("the node's Python is not hermetic:\n" + "\n".join(violations))
        for source, name in _SYSTEM_FILES.items():
            _copy(self._checkout / source, tree / "system" / name)
        _copy(self._checkout / "LICENSE", tree / "LICENSE")
        words = {"@LOADER@": current().loader, "@PYTHON@": python.program.name}
        for source, name in _SCRIPTS.items():
            text = (self._checkout / source).read_text()
            for word, value in {**words, "@VERSION@": version}.items():
                text = text.replace(word, value)
            (tree / name).parent.mkdir(exist_ok=True)
            (tree / name).write_text(text)
            (tree / name).chmod(0o755)
        manifest = {
            "version": version,
            "architecture": _ARCHITECTURES[current().machine],
            "machine": current().machine,
            "runtime": runtime.name,
        }
        (tree / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")

    def _write_metadata(self, site: Path, version: str) -> None:
        """The shim reports the version of the package that it finds."""
        folder = site / f"fairlead-{version}.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: fairlead\nVersion: {version}\n"
        (folder / "METADATA").write_text(text)

    def _sources(self) -> list[Path]:
        return sources_below(self._checkout, (*OUR_SOURCES, *_OWN_PACKAGES), _NOT_SHIPPED)

    @contextlib.contextmanager
    def _only_one_at_a_time(self) -> Iterator[None]:
        with (self._build / "bundle.lock").open("w") as lock:
            # The kernel frees it also when a build is killed (flock(2)).
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _work_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="bundle-", dir=self._build) as folder:
            Path(folder).chmod(0o755)
            yield Path(folder)


def _keep_newest(folder: Path) -> None:
    """One that was just built may be in use next to the new one."""
    folder.mkdir(exist_ok=True)
    # By ctime: `normalise` gives all files the same mtime.
    for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_ctime)[:-_KEPT]:
        shutil.rmtree(old)


def share_files(first: Path, second: Path) -> None:
    """Make each file of `second` that `first` has, with its mode, another name of that file."""
    known: dict[tuple[int, bytes], Path] = {}
    for path in sorted(first.rglob("*")):
        if path.is_file() and not path.is_symlink():
            known.setdefault(_identity(path), path)
    for path in sorted(second.rglob("*")):
        if path.is_file() and not path.is_symlink() and (twin := known.get(_identity(path))):
            path.unlink()
            os.link(twin, path)
    # The new names have changed the times of their folders.
    for folder in (second, *second.rglob("*")):
        os.utime(folder, (0, 0), follow_symlinks=False)


def _identity(path: Path) -> tuple[int, bytes]:
    return path.stat().st_mode, hashlib.sha256(path.read_bytes()).digest()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
