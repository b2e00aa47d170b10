"""What the dashboard takes from npm: fetched once, with its licenses, and not changed since."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller.web import vendored
from controller.web.vendored import SERVED, VendorError, bring, is_complete
from tests.support.installed import CHECKOUT


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of packages that this machine's npm brings."""
    folder, programs = tmp_path / "packages", tmp_path / "bin"
    for name, files in SERVED.items():
        for file in (*files, "LICENSE"):
            place = folder / name / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"{name} {file}")
    programs.mkdir()
    (programs / "npm").write_text(f"#!/bin/sh\ncp -r {folder} node_modules\n")
    (programs / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def web(tmp_path: Path, packages: Path) -> Path:
    folder = tmp_path / "web"
    folder.mkdir()
    for name in ("package.json", "package-lock.json"):
        (folder / name).write_text("{}")
    return folder


def test_each_file_comes_with_its_license(web: Path) -> None:
    bring(web)
    vendor = web / "static/vendor"
    assert is_complete(web)
    assert (vendor / "xterm.mjs").read_text() == "@xterm/xterm lib/xterm.mjs"
    assert (vendor / "addon-fit.LICENSE.txt").read_text() == "@xterm/addon-fit LICENSE"


def test_what_is_complete_is_not_fetched_again(web: Path, packages: Path) -> None:
    bring(web)
    (packages / "uplot/dist/uPlot.esm.js").write_text("newer")
    bring(web)
    assert (web / "static/vendor/uPlot.esm.js").read_text() == "uplot dist/uPlot.esm.js"


def test_a_file_that_was_changed_is_fetched_again(web: Path) -> None:
    bring(web)
    script = web / "static/vendor/htmx.min.js"
    script.write_text("changed")
    assert not is_complete(web)
    bring(web)
    assert script.read_text() == "htmx.org dist/htmx.min.js"


def test_a_machine_without_npm_says_so(web: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(VendorError, match="npm is missing"):
        bring(web)
    assert not (web / "static/vendor").exists()


def test_what_this_checkout_serves_is_what_npm_checked() -> None:
    modules = CHECKOUT / ".build/npm/node_modules"
    assert is_complete()
    for package, files in SERVED.items():
        for file in files:
            ours = vendored.WEB / "static/vendor" / Path(file).name
            assert ours.read_bytes() == (modules / package / file).read_bytes()
