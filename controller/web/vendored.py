"""Brings what the dashboard takes from npm into `static/vendor`, each package checked by its hash.

`./dev setup` calls it, and so does the build of a wheel (`setup.py`): an install serves the files
that the tests have seen. It imports only the standard library, because a build has nothing else.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

WEB = Path(__file__).parent
SERVED: Mapping[str, tuple[str, ...]] = {
    "htmx.org": ("dist/htmx.min.js",),
    "idiomorph": ("dist/idiomorph-ext.min.js",),
    "uplot": ("dist/uPlot.esm.js", "dist/uPlot.min.css"),
    "@xterm/xterm": ("lib/xterm.mjs", "css/xterm.css"),
    "@xterm/addon-fit": ("lib/addon-fit.mjs",),
}
"""The files of each package that browsers get; their license goes with them."""
FOR_TESTS: Mapping[str, tuple[str, ...]] = {"axe-core": ("axe.min.js",)}
REGISTRY = "https://registry.npmjs.org"
SECONDS = 60.0
_LICENSE = "LICENSE"
_STAMP = ".stamp"


class VendorError(Exception):
    """A package cannot be brought; the message is a sentence."""


class _Package(NamedTuple):
    name: str
    version: str
    integrity: str


def bring(web: Path = WEB, keep: Path | None = None) -> None:
    """Make `static/vendor` complete; nothing is fetched if it is. Raises VendorError.

    `keep`: a folder whose `node_modules` stays, with what tests need.
    """
    wanted = SERVED if keep is None else {**SERVED, **FOR_TESTS}
    if is_complete(web) and (keep is None or _has_all(keep, wanted)):
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-npm-") as scratch:
        folder = Path(scratch) if keep is None else keep
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(web, folder, wanted)
        _copy(folder / "node_modules", web / "static" / "vendor")
    (web / "static" / "vendor" / _STAMP).write_text(_digest(web) + "\n")


def is_complete(web: Path = WEB) -> bool:
    """Return whether all files are there, as they came, of the versions in package-lock.json."""
    try:
        return (web / "static" / "vendor" / _STAMP).read_text().strip() == _digest(web)
    except FileNotFoundError:
        return False


def _digest(web: Path) -> str:
    """Raises FileNotFoundError."""
    every = hashlib.sha256((web / "package-lock.json").read_bytes())
    for _, _, kept in _kept():
        every.update(kept.encode() + b"\0" + (web / "static" / "vendor" / kept).read_bytes())
    return every.hexdigest()


def _kept() -> Iterator[tuple[str, str, str]]:
    """Yield package, file in it and name in `static/vendor`."""
    for package, files in SERVED.items():
        yield from ((package, file, file.rpartition("/")[2]) for file in files)
        yield package, _LICENSE, f"{package.rpartition('/')[2]}.LICENSE.txt"


def _has_all(folder: Path, wanted: Mapping[str, tuple[str, ...]]) -> bool:
    modules = folder / "node_modules"
    return all(
        (modules / name / file).is_file() for name, files in wanted.items() for file in files
    )


def _copy(modules: Path, vendor: Path) -> None:
    shutil.rmtree(vendor, ignore_errors=True)
    vendor.mkdir(parents=True)
    for package, file, kept in _kept():
        shutil.copyfile(modules / package / file, vendor / kept)


def _fetch(web: Path, folder: Path, wanted: Mapping[str, tuple[str, ...]]) -> None:
    npm = shutil.which("npm")
    if npm is not None:  # it knows the user's registries, logins and proxies
        _npm_ci(npm, web, folder)
        return
    for package in _locked(web):
        if package.name in wanted:
            _download(package, folder / "node_modules", (*wanted[package.name], _LICENSE))


def _npm_ci(npm: str, web: Path, folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(web / name, folder / name)
    argv = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise VendorError(f"`npm ci` failed: {lines[0]}")


def _locked(web: Path) -> list[_Package]:
    packages = json.loads((web / "package-lock.json").read_text())["packages"]
    return [
        _Package(place.removeprefix("node_modules/"), found["version"], found["integrity"])
        for place, found in packages.items()
        if place
    ]


def _download(package: _Package, modules: Path, files: tuple[str, ...]) -> None:
    # npm takes its variables in any case.
    environ = {name.lower(): value for name, value in os.environ.items()}
    registry = environ.get("npm_config_registry", REGISTRY).rstrip("/")
    short = package.name.rpartition("/")[2]
    url = f"{registry}/{package.name}/-/{short}-{package.version}.tgz"
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            content = answer.read()
    except (OSError, ValueError) as error:
        raise VendorError(f"{url} cannot be fetched: {getattr(error, 'reason', error)}") from None
    algorithm, _, expected = package.integrity.partition("-")
    if base64.b64encode(hashlib.new(algorithm, content).digest()).decode() != expected:
        raise VendorError(f"{url} is not what package-lock.json has: its {algorithm} differs")
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:gz") as archive:
            _extract(archive, modules / package.name, files)


def _extract(archive: tarfile.TarFile, folder: Path, files: tuple[str, ...]) -> None:
    """Only the named files: the archive decides no path."""
    for file in files:
        member = archive.extractfile(f"package/{file}")
        assert member is not None
        place = folder / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(member.read())


def main() -> int:
    parser = argparse.ArgumentParser(description="Brings what the dashboard takes from npm.")
    parser.add_argument("--keep", type=Path, help="a folder for what tests need of npm")
    try:
        bring(keep=parser.parse_args().keep)
    except VendorError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
