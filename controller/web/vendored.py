"""Brings what the dashboard takes from npm into `static/vendor`, each package checked by its hash.

`./dev setup` calls it, and so does the build of a wheel (`setup.py`): an install serves the files
that the tests have seen. npm checks each package by its integrity in package-lock.json; where there
is no npm, both bring it as a wheel. It imports only the standard library, as a build has no more.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

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
_LICENSE = "LICENSE"
_STAMP = ".stamp"


class VendorError(Exception):
    """A package cannot be brought; the message is a sentence."""


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
        _fetch(web, folder)
        _copy(folder / "node_modules", web / "static" / "vendor")
    (web / "static" / "vendor" / _STAMP).write_text(_digest(web) + "\n")


def is_complete(web: Path = WEB) -> bool:
    """Return whether all files are there, as they came, of the versions in package-lock.json."""
    try:
        return (web / "static" / "vendor" / _STAMP).read_text().strip() == _digest(web)
    # A checkout without a network has none of it: the dashboard says so.
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


def _fetch(web: Path, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise VendorError("npm is missing, and the build brought none")
    _npm_ci(npm, web, folder)


def _npm_ci(npm: str, web: Path, folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(web / name, folder / name)
    argv = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise VendorError(f"`npm ci` failed: {lines[0]}")


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
