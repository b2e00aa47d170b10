"""The dashboard of an installed controller: what a wheel holds, and what it serves."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from controller.web.vendored import is_complete
from tests.support.installed import CHECKOUT, Environment, build_wheel, copy_checkout
from tests.support.processes import ControllerProcess
from tests.support.waiting import LONG

pytestmark = pytest.mark.long  # wheels are built and installed
STATIC = "controller/web/static"
PACKAGES = ("common", "shim", "runner", "controller", "entrypoint", "gateway")
NOT_INSTALLED = re.compile(r"entrypoint/runtime/|\.(in|lock)$")
"""Sources of builds, which need a checkout."""


def get(controller: ControllerProcess, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", controller.port, timeout=LONG)
    try:
        connection.request("GET", path, headers={"Accept": "text/html"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_an_installed_controller_serves_the_dashboard_with_all_its_files(
    for_operators: Environment, tmp_path: Path
) -> None:
    controller = ControllerProcess(tmp_path / "controller", programs=for_operators.bin)
    controller.start()
    try:
        status, page = get(controller, "/dashboard/login")
        assert status == 200
        (folder,) = set(re.findall(r'"(/dashboard/static/[0-9a-f]+/)', page))
        ours = [file for file in (CHECKOUT / STATIC).rglob("[!.]*") if file.is_file()]
        names = [file.relative_to(CHECKOUT / STATIC).as_posix() for file in ours]
        assert {"vendor/htmx.min.js", "vendor/xterm.mjs", "fairlead.css"} <= set(names)
        assert {name: get(controller, folder + name)[0] for name in names} == dict.fromkeys(
            names, 200
        )
    finally:
        controller.stop()
        controller.close()


def tracked(*packages: str) -> set[str]:
    argv = ["git", "-C", str(CHECKOUT), "ls-files", "--", *packages]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return {name for name in listed if not NOT_INSTALLED.search(name)}


def test_the_wheels_hold_all_that_the_checkout_has(client_wheel: Path, daemons_wheel: Path) -> None:
    for wheel, packages in ((client_wheel, ("fairlead",)), (daemons_wheel, PACKAGES)):
        with zipfile.ZipFile(wheel) as archive:
            assert tracked(*packages) - set(archive.namelist()) == set()


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A clone in which nothing was set up."""
    checkout = copy_checkout(tmp_path / "checkout")
    shutil.rmtree(checkout / STATIC / "vendor")
    return checkout


def with_npm_that(says: str, tmp_path: Path) -> dict[str, str]:
    """An environment with an npm that is this script."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "npm").write_text(f"#!/bin/sh\n{says}\n")
    (programs / "npm").chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}


def test_a_wheel_of_a_fresh_clone_has_what_npm_brings(fresh: Path, tmp_path: Path) -> None:
    modules = CHECKOUT / ".build/npm/node_modules"
    env = with_npm_that(f'[ "$1" = ci ] && cp -r {modules} .', tmp_path)
    with zipfile.ZipFile(build_wheel(fresh / "daemons", tmp_path / "out", env)) as archive:
        archive.extractall(tmp_path / "installed")
    assert is_complete(tmp_path / "installed/controller/web")


def test_a_build_that_cannot_bring_the_scripts_says_how_to_go_without(
    fresh: Path, tmp_path: Path
) -> None:
    env = with_npm_that("echo npm error network ENOTFOUND >&2; exit 1", tmp_path)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build_wheel(fresh / "daemons", tmp_path / "out", env)
    assert (
        "error: the dashboard's scripts are missing: `npm ci` failed: npm error network ENOTFOUND."
        " Build with a network, or set FAIRLEAD_WITHOUT_DASHBOARD=1"
    ) in failed.value.stderr
    wheel = build_wheel(
        fresh / "daemons", tmp_path / "out", {**env, "FAIRLEAD_WITHOUT_DASHBOARD": "1"}
    )
    with zipfile.ZipFile(wheel) as archive:
        assert f"{STATIC}/fairlead.css" in archive.namelist()


def test_a_source_archive_builds_the_wheel_without_npm(tmp_path: Path) -> None:
    build = "import setuptools.build_meta as it; print(it.build_sdist('dist'))"
    checkout = copy_checkout(tmp_path / "checkout")
    (checkout / "daemons/dist").mkdir()
    argv = [sys.executable, "-c", build]
    subprocess.run(argv, cwd=checkout / "daemons", capture_output=True, check=True)
    (made,) = (checkout / "daemons/dist").glob("*.tar.gz")
    with tarfile.open(made) as archive:
        archive.extractall(tmp_path, filter="data")
    env = with_npm_that("exit 1", tmp_path)
    wheel = build_wheel(tmp_path / made.name.removesuffix(".tar.gz"), tmp_path / "out", env)
    with zipfile.ZipFile(wheel) as archive:
        assert f"{STATIC}/vendor/xterm.mjs" in archive.namelist()
