"""Root folders of images that need no registry: one with busybox, one without a shell."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

from tests.support.daemons import run

_BUSYBOX = Path("/bin/busybox")
KEPT = Path("/var/cache/fairlead-tests")
"""Where the machine's checkouts share what takes long to make: a root of Debian takes a minute."""
KEPT_SECONDS = 7 * 86400.0
_BUILD_SECONDS = 1200.0


def busybox_root(folder: Path) -> Path:
    """busybox under all its names, static; no Python, no glibc."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    shutil.copy2(_BUSYBOX, programs / "busybox")
    for applet in run([_BUSYBOX, "--list"]).split():
        if applet != "busybox":
            (programs / applet).symlink_to("busybox")
    (folder / "tmp").mkdir(mode=0o777)
    (folder / "tmp").chmod(0o1777)
    return folder


def noshell_root(folder: Path) -> Path:
    """A single static program, /tool, and nothing else: no /bin, no /tmp, no /etc."""
    folder.mkdir(parents=True)
    source = Path(__file__).with_name("noshell.c")
    run(["musl-gcc", "-static", "-Os", "-s", "-o", folder / "tool", source])
    return folder


def musl_root(folder: Path) -> Path:
    """busybox beside a musl of its own and a program linked to that: `/tool`, as in `noshell`."""
    root = busybox_root(folder)
    libc = root / "lib/x86_64-linux-musl"
    libc.mkdir(parents=True)
    shutil.copy2("/lib/x86_64-linux-musl/libc.so", libc / "libc.so")
    (root / "lib/ld-musl-x86_64.so.1").symlink_to("x86_64-linux-musl/libc.so")
    source = Path(__file__).with_name("noshell.c")
    run(["musl-gcc", "-Os", "-s", "-o", root / "tool", source])
    return root


def debian_archive(suite: str, *packages: str) -> Path:
    """A root of a Debian release as a tar archive, not older than a week."""
    KEPT.mkdir(parents=True, exist_ok=True)
    archive = KEPT / ("-".join((suite, *packages)) + ".tar")
    with archive.with_suffix(".lock").open("w") as lock:
        # Tests that run side by side want the same one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists() or time.time() - archive.stat().st_mtime > KEPT_SECONDS:
            fresh = archive.with_name(f".{archive.name}")
            options: list[str | Path] = ["--quiet", "--mode=root", "--variant=minbase"]
            options.append("--format=tar")
            options.append('--aptopt=Acquire::Retries "5"')
            included = [f"--include={','.join(packages)}"] if packages else []
            mirror = "http://deb.debian.org/debian"
            options += [*included, suite, fresh, mirror]
            run([*_outside(), "mmdebstrap", *options], timeout=_BUILD_SECONDS)
            fresh.rename(archive)
    return archive


def _outside() -> list[str]:
    """Begins a command that fetches: `./dev e2e` runs most tests without a way out."""
    network = os.environ.get("E2E_OUTSIDE")
    return ["nsenter", f"--net={network}"] if network else []


def openmpi_archive(folder: Path) -> Path:
    """Debian with Open MPI and ssh, without an sshd, and `/allreduce`: every rank says the sum of
    all ranks' numbers."""
    archive = folder / "openmpi.tar"
    shutil.copyfile(debian_archive("bookworm", "openmpi-bin", "openssh-client"), archive)
    libraries = folder / "usr/lib/x86_64-linux-gnu"
    run(["tar", "-x", "-C", folder, "-f", archive, "./usr/lib/x86_64-linux-gnu"])
    source = Path(__file__).with_name("allreduce.c")
    found = [f"-L{libraries}", "-l:libmpi.so.40", "-Wl,--allow-shlib-undefined"]
    run(["gcc", "-fPIC", "-o", folder / "allreduce", source, *found])
    run(["tar", "--append", "-C", folder, "-f", archive, "./allreduce"])
    return archive


def preload_library(path: Path, marker: str) -> Path:
    """A library that says `marker` on standard error in every process that loads it."""
    source = path.with_suffix(".c")
    source.write_text(
        "#include <unistd.h>\n__attribute__((constructor)) static void loaded(void)\n"
        f'{{ static const char said[] = "{marker}\\n"; (void)!write(2, said, sizeof said - 1); }}\n'
    )
    run(["gcc", "-shared", "-fPIC", "-nostartfiles", "-o", path, source])
    return path
