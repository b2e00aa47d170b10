"""The part of the runtime that changes rarely: interpreter, libraries, wheels and launcher."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from entrypoint.runtime import LAUNCHER, MOUNT_PATH, debian, elf
from entrypoint.runtime.errors import fetch, run
from entrypoint.runtime.platform import Platform, current

SOURCES = Path(__file__).parent
_WRITER = SOURCES / "write_module_file.py"

_UNUSED_IN_WHEELS = ("*.pyx", "*.pxd", "*.pxi", "*.c", "*.h", "*.pyi")
_UNUSED_PARTS = (
    "cffi",
    "pycparser",
    "dulwich/aiohttp",
    "dulwich/am.py",
    "dulwich/annotate.py",
    "dulwich/bisect.py",
    "dulwich/cli.py",
    "dulwich/cloud",
    "dulwich/contrib",
    "dulwich/fastexport.py",
    "dulwich/filter_branch.py",
    "dulwich/lfs_server.py",
    "dulwich/mailmap.py",
    "dulwich/maintenance.py",
    "dulwich/mbox.py",
    "dulwich/porcelain",
    "dulwich/rerere.py",
    "dulwich/stash.py",
    "dulwich/web.py",
    "dulwich/whitespace.py",
    "frozenlist/_frozenlist.*.so",
)
"""cryptography needs the compiled half of cffi alone; dulwich's commands and servers serve its own
programs; on nodes, the compiled half of frozenlist would be the only user of libstdc++ (2.5 MB)."""
_UNUSED_FOLDERS = ("tests", "test", "sboms")
_FOR_WINDOWS = "*.exe"
_INSTALLER_NOTES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
_LOADED_LATE = ("libgcc_s.so.1",)
"""glibc opens it when a thread is cancelled; no file names it."""


@dataclass(frozen=True)
class Base:
    """The places of the parts of a runtime's tree."""

    root: Path
    python: str

    @property
    def libraries(self) -> Path:
        return self.root / "lib"

    @property
    def standard_library(self) -> Path:
        return self.root / "lib" / f"python{self.python}"

    @property
    def site(self) -> Path:
        return self.root / "site"

    @property
    def tools(self) -> Path:
        return self.root / "tools"

    @property
    def program(self) -> Path:
        return self.root / "bin" / f"python{self.python}"

    def compile(self, folders: list[Path], home: str = MOUNT_PATH) -> None:
        """Compile to unchecked pycs: the files never change under a mount, so no source must be
        checked.

        `home` is where the tree will lie, as tracebacks name it.
        """
        compile_all = "-m compileall -q -f -j 1 --invalidation-mode unchecked-hash"
        recorded_paths = ("-s", self.root, "-p", home)
        self._run(*compile_all.split(), *recorded_paths, *folders)

    def write_module_file(self) -> None:
        """Write the code of a job's first process into one file (`entrypoint.module_file`)."""
        # Columns of errors, which tracebacks underline, are a tenth of the code.
        self._run("-X", "no_debug_ranges", _WRITER, self.root, MOUNT_PATH)

    def _run(self, *arguments: str | Path) -> None:
        """Run the tree's interpreter where the tree lies now."""
        loader = self.libraries / current().loader
        # Code has a set of constants in the order of their hashes; a rebuild must give the same
        # bytes.
        environment = {"PATH": os.defpath, "PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": "0"}
        paths = ("--library-path", self.libraries, "--argv0", self.program)
        # Else ld.so takes libraries of the building machine from its cache (ld.so(8)).
        program = (loader, "--inhibit-cache", *paths, self.program)
        run([*program, "-I", "-S", "-X", "utf8=1", *arguments], env=environment)


def build(root: Path, work: Path) -> Base:
    platform = current()
    base = Base(root, debian.python_version())
    unpacked = work / "unpacked"
    packages = debian.download(debian.packages(base.python), work / "debs")
    debian.unpack(work / "debs", unpacked)
    _copy_interpreter(base, unpacked)
    install_wheels(base, SOURCES / "wheels.lock")
    _copy_libraries(base, unpacked, platform)
    elf.set_rpaths(root, base.libraries)
    elf.set_interpreter(base.program, f"{MOUNT_PATH}/lib/{platform.loader}")
    elf.blind_loader(base.libraries / platform.loader, platform)
    _fix_module_path(base)
    _compile_launcher(base)
    base.compile([base.standard_library, base.site])
    _install_tools(base, work / "tools")
    (root / "sources.json").write_text(json.dumps(packages, indent=1, sort_keys=True) + "\n")
    return base


def _copy_interpreter(base: Base, unpacked: Path) -> None:
    base.program.parent.mkdir(parents=True)
    base.libraries.mkdir()
    shutil.copyfile(unpacked / "usr/bin" / base.program.name, base.program)
    base.program.chmod(0o755)
    shutil.copytree(
        unpacked / "usr/lib" / base.standard_library.name,
        base.standard_library,
        ignore=shutil.ignore_patterns("__pycache__", "tests", "test"),
        ignore_dangling_symlinks=True,
    )
    for pattern in (SOURCES / "unused-modules.txt").read_text().split():
        for path in base.standard_library.glob(pattern):
            _remove(path)


def install_wheels(base: Base, lock: Path) -> None:
    """Install the wheels of the lock. Markers were resolved when the lock was made, so --no-deps
    uses the list as it is."""
    platform = current()
    # Copies: by default uv links to files of its cache, which `strip` would change.
    options = "pip install -q --no-deps --only-binary=:all: --link-mode=copy --require-hashes"
    wheels_for = (
        f"--python-version={base.python}",
        f"--python-platform={platform.machine}-manylinux_2_34",
    )
    uv = (sys.executable, "-m", "uv", *options.split())
    fetch([*uv, *wheels_for, "--target", base.site, "-r", lock])
    # Scripts in it name the interpreter of the machine that builds.
    shutil.rmtree(base.site / "bin", ignore_errors=True)
    # uv leaves its lock in the folder that it fills.
    (base.site / ".lock").unlink(missing_ok=True)
    for pattern in _UNUSED_IN_WHEELS:
        for path in base.site.rglob(pattern):
            _remove(path)
    for folder in [path for path in base.site.rglob("*") if path.name in _UNUSED_FOLDERS]:
        _remove(folder)
    for pattern in _UNUSED_PARTS:
        for path in base.site.glob(pattern):
            _remove(path)
    for note in _INSTALLER_NOTES:
        for path in base.site.glob(f"*.dist-info/{note}"):
            _remove(path)
    for file in elf.elf_files(base.site):
        run(["strip", "--strip-unneeded", file])


def _install_tools(base: Base, work: Path) -> None:
    """Add uv, which makes a job's venv, as a static program that runs in any image; and pip, which
    the venv gets."""
    options = "pip install -q --no-deps --only-binary=:all: --link-mode=copy --require-hashes"
    wheels_for = (
        f"--python-version={base.python}",
        f"--python-platform={current().machine}-unknown-linux-musl",
    )
    uv = (sys.executable, "-m", "uv", *options.split())
    fetch([*uv, *wheels_for, "--target", work, "-r", SOURCES / "tools.lock"])
    base.tools.mkdir()
    shutil.copyfile(work / "bin" / "uv", base.tools / "uv")
    (base.tools / "uv").chmod(0o755)
    for part in (work / "pip", *work.glob("pip-*.dist-info")):
        unwanted = (*_INSTALLER_NOTES, *_UNUSED_FOLDERS, "__pycache__", _FOR_WINDOWS)
        ignored = shutil.ignore_patterns(*unwanted)
        shutil.copytree(part, base.tools / "pip" / part.name, ignore=ignored)


def _copy_libraries(base: Base, unpacked: Path, platform: Platform) -> None:
    folders = [
        unpacked / prefix / folder
        for folder in (f"lib/{platform.triplet}", platform.library_folder)
        for prefix in ("usr", ".")
    ]
    elf.copy_needed_libraries(elf.elf_files(base.root), folders, base.libraries)
    for name in _LOADED_LATE:
        source = next(folder / name for folder in folders if (folder / name).exists())
        shutil.copyfile(source.resolve(), base.libraries / name)
    # copyfile leaves the mode out, and the kernel executes the loader (execve(2)).
    (base.libraries / platform.loader).chmod(0o755)


def _fix_module_path(base: Base) -> None:
    folders = (f"../lib/python{base.python}", f"../lib/python{base.python}/lib-dynload", "../site")
    # With this file the interpreter looks nowhere else, whatever a job's PYTHONPATH says.
    path_file = base.program.with_name(f"{base.program.name}._pth")
    path_file.write_text("".join(f"{folder}\n" for folder in folders))


def _compile_launcher(base: Base) -> None:
    python = f'-DPYTHON="{MOUNT_PATH}/bin/{base.program.name}"'
    options = "-std=c11 -static -Os -s -Wall -Wextra -Werror -Wl,--build-id=none"
    output = ("-o", base.root / LAUNCHER)
    run(["musl-gcc", *options.split(), python, *output, SOURCES / "launcher.c"])


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
