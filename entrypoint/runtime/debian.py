"""CPython and its C libraries, taken from the packages of the build machine's release.

apt checks every package against the release's signature, so nothing here is trusted by name only.
This is the one module that knows apt and dpkg: a base of another distribution replaces it alone.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from entrypoint.runtime.errors import BuildError, fetch, run

_EXTRA_LIBRARIES = ("libstdc++6", "libgcc-s1")


def python_version() -> str:
    """Return the release's own Python, as "3.11"."""
    shown = run(["apt-cache", "show", "--no-all-versions", "python3-minimal"])
    found = re.search(r"\bpython(3\.\d+)-minimal", shown)
    if found is None:
        raise BuildError("apt knows no python3-minimal: run apt-get update as root")
    return found.group(1)


def packages(version: str) -> list[str]:
    """Return Python's packages and the libraries that they link to, under this release's names."""
    roots = [f"python{version}-minimal", f"libpython{version}-minimal"]
    roots.append(f"libpython{version}-stdlib")
    listed = run(["apt-cache", "depends", "--no-recommends", "--no-suggests", *roots])
    linked = set(re.findall(r"^ +(?:Pre)?Depends: (lib\S+|zlib1g)$", listed, re.MULTILINE))
    return sorted({*roots, *linked, *_EXTRA_LIBRARIES})


def download(names: list[str], folder: Path) -> dict[str, str]:
    """Fetch the packages into `folder`; return file name → sha256."""
    folder.mkdir(parents=True)
    fetch(["apt-get", "download", "-q", *names], cwd=folder)
    files = sorted(folder.glob("*.deb"))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def unpack(debs: Path, root: Path) -> None:
    root.mkdir(parents=True)
    for deb in sorted(debs.glob("*.deb")):
        run(["dpkg-deb", "-x", deb, root])
