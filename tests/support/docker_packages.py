"""Docker from a Debian release other than the machine's own, in a folder of its own.

`python -m tests.support.docker_packages forky` prints the folder of its programs. Put it in front
of PATH: all that starts a dockerd then starts this one, with its containerd and its runc. Nothing
else changes: the machine's packages, its mounts and its firewall tools are the same.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from entrypoint.runtime import elf
from entrypoint.runtime.errors import BuildError, fetch, run
from entrypoint.runtime.platform import current
from tests.support.images import KEPT, KEPT_SECONDS

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_MIRROR = "http://deb.debian.org/debian"
_PACKAGES = ("docker.io", "docker-cli", "crun")
_PROGRAMS = (
    *("dockerd", "docker", "docker-proxy", "docker-init"),
    *("containerd", "containerd-shim-runc-v2", "runc", "crun"),
)
_CRUN = "crun"
_SUITE_OF_CRUN = "trixie"
_PLUGINS = ("docker-compose", "docker-buildx")
_SUITE_OF_PLUGINS = "trixie"
_OPENED_LATE = "libgcc_s.so.1"
"""glibc opens it when a thread is cancelled; no file names it."""


def programs(suite: str) -> Path:
    """Return the folder of the programs, not older than a week. Raises BuildError."""
    return _kept(KEPT / f"docker-{suite}", suite, _PACKAGES, _PROGRAMS)


def crun() -> Path:
    """Return crun: the one of PATH, or one that is not installed, because Podman would use it from
    then on. Raises BuildError."""
    if (found := shutil.which(_CRUN)) is not None:
        return Path(found)
    kept = KEPT / f"crun-{_SUITE_OF_CRUN}"
    return _kept(kept, _SUITE_OF_CRUN, (_CRUN,), (_CRUN,)) / _CRUN


def plugins() -> Path:
    """Return the folder of `docker compose` and `docker buildx`, which Debian's Docker has as
    packages of their own, and bookworm not at all. Raises BuildError."""
    kept = KEPT / f"docker-plugins-{_SUITE_OF_PLUGINS}"
    return _kept(kept, _SUITE_OF_PLUGINS, _PLUGINS, _PLUGINS)


def _kept(kept: Path, suite: str, packages: Sequence[str], names: Sequence[str]) -> Path:
    KEPT.mkdir(parents=True, exist_ok=True)
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists() or time.time() - kept.stat().st_mtime > KEPT_SECONDS:
            with tempfile.TemporaryDirectory(prefix=f".{kept.name}-", dir=KEPT) as work:
                archives = _downloaded(suite, packages, Path(work))
                fresh = _unpacked(archives, names, Path(work), kept)
                shutil.rmtree(kept, ignore_errors=True)
                fresh.rename(kept)
    return kept / "bin"


def versions(folder: Path) -> str:
    told = (run([folder / name, "--version"]) for name in ("dockerd", "containerd", "runc", "crun"))
    return ", ".join(text.splitlines()[0] for text in told)


def _downloaded(suite: str, packages: Sequence[str], work: Path) -> Path:
    """The packages and all that they depend on, which apt checks against Debian's signature."""
    (work / "state/lists/partial").mkdir(parents=True)
    (work / "cache/archives/partial").mkdir(parents=True)
    (work / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_MIRROR} {suite} main\n")
    (work / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{work}/sources.list";\n'
        'Dir::Etc::sourceparts "/dev/null";\n'
        'Dir::Etc::preferences "/dev/null";\n'
        'Dir::Etc::preferencesparts "/dev/null";\n'
        f'Dir::State "{work}/state";\n'
        # Nothing is installed in this view, so all that a package needs is fetched.
        'Dir::State::status "/dev/null";\n'
        f'Dir::Cache "{work}/cache";\n'
        'Acquire::Languages "none";\n'
        'Acquire::Retries "5";\n'
        # A mirror that stands still for some weeks is good enough for a test.
        'Acquire::Check-Valid-Until "false";\n'
        'APT::Install-Recommends "false";\n'
        'APT::Sandbox::User "root";\n'
    )
    apt = ["env", f"APT_CONFIG={work}/apt.conf", "apt-get", "-q", "-y"]
    fetch([*apt, "update"])
    fetch([*apt, "install", "--download-only", *packages])
    return work / "cache/archives"


def _unpacked(archives: Path, names: Sequence[str], work: Path, home: Path) -> Path:
    """The programs with their libraries, even the C library and its loader, for `home`."""
    root, fresh = work / "root", work / "docker"
    root.mkdir()
    for package in sorted(archives.glob("*.deb")):
        run(["dpkg-deb", "-x", package, root])
    (fresh / "bin").mkdir(parents=True)
    (fresh / "lib").mkdir()
    for name in names:
        shutil.copy(_found(root, name), fresh / "bin" / name)
    platform = current()
    libraries = root / "usr/lib" / platform.triplet
    shutil.copy(libraries / _OPENED_LATE, fresh / "lib")
    shutil.copy(libraries / platform.loader, fresh / "lib")
    elf.copy_needed_libraries(elf.elf_files(fresh), [libraries], fresh / "lib")
    for program in elf.elf_files(fresh / "bin"):
        if elf.dynamic(program).needed:
            # Not $ORIGIN: runc and crun execute a copy of themselves that lies in no folder.
            found = ("--force-rpath", "--set-rpath", home / "lib")
            loader = ("--set-interpreter", home / "lib" / platform.loader)
            run(["patchelf", *found, *loader, program])
    return fresh


def _found(root: Path, name: str) -> Path:
    for folder in ("sbin", "bin", "libexec/docker/cli-plugins"):
        if (file := root / "usr" / folder / name).exists():
            return file
    raise BuildError(f"no package has {name}")


def main() -> None:
    if len(sys.argv) != 2 or os.geteuid() != 0:
        raise SystemExit("usage, as root: python -m tests.support.docker_packages SUITE")
    try:
        folder = programs(sys.argv[1])
        sys.stderr.write(f"dev: Debian {sys.argv[1]}: {versions(folder)}\n")
    except BuildError as error:
        raise SystemExit(f"dev: no Docker of Debian {sys.argv[1]}: {error}") from None
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    main()
