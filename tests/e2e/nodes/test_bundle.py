"""The bundle: the same sources give the same bytes, and a node gets no more than it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from installer.bundle.build import Bundle, BundleBuilder
from installer.bundle.packing import write_deb, write_tar
from tests.support.daemons import run
from tests.support.ssh_daemon import CHECKOUT
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e

SYSTEM = CHECKOUT / "packer/systemd"
MAX_BYTES = 150_000_000


def test_two_builds_are_equal_byte_for_byte(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from a checkout at another place, whose files are younger."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    copy = tmp_path / "checkout"
    copy.mkdir()
    tracked = run(["git", "-C", CHECKOUT, "ls-files", "-z"])
    names = "\0".join(name for name in tracked.split("\0") if (CHECKOUT / name).exists())
    packed = tmp_path / "checkout.tar"
    run(["tar", "-c", "-C", CHECKOUT, "--null", "-T", "-", "-f", packed], stdin=names.encode())
    run(["tar", "-x", "-m", "-C", copy, "-f", packed])
    build = tmp_path / "build"
    build.mkdir()
    again = BundleBuilder(copy, build).build()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = write_tar(bundle, tmp_path / "a"), write_tar(again, tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    run(["sh", "-c", f"cd {tmp_path / 'a'} && sha256sum -c *.sha256"])


def test_it_holds_the_agents_and_their_packages_only(bundle: Bundle) -> None:
    site = bundle.folder / "python/site"
    names = {path.name.partition("-")[0].lower() for path in site.iterdir()}
    assert {"shim", "runner", "entrypoint", "installer", "aiohttp", "docker"} <= names
    assert names.isdisjoint({"controller", "mypy", "pytest", "ruff", "sqlalchemy", "uv", "pip"})


def test_a_node_needs_at_most_150_mb(bundle: Bundle, tmp_path: Path) -> None:
    """Folders included, and the tar that brings it as well."""
    entries = {(found.st_ino, found.st_size) for found in map(os.lstat, bundle.folder.rglob("*"))}
    assert sum(size for _, size in entries) <= MAX_BYTES
    assert write_tar(bundle, tmp_path).stat().st_size <= MAX_BYTES


def test_the_package_unpacks_to_the_same_files(bundle: Bundle, tmp_path: Path) -> None:
    package = write_deb(bundle, tmp_path)
    assert run(["dpkg-deb", "-f", package, "Version"]).strip() == bundle.version
    run(["dpkg-deb", "-x", package, tmp_path / "root"])
    run(["diff", "-r", "--no-dereference", bundle.folder, tmp_path / "root/usr/lib/fairlead-node"])


@pytest.mark.parametrize(("unit", "most"), [("fairlead-shim", 55), ("fairlead-firewall", 37)])
def test_systemd_finds_the_unit_hardened(unit: str, most: int) -> None:
    """Its exposure, times ten; the shim's unit says what its work leaves no room for."""
    options = ("--offline=true", f"--threshold={most}", "--no-pager")
    command = ["systemd-analyze", "security", *options, str(SYSTEM / f"{unit}.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1]
