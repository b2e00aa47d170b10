"""What the dashboard takes from npm, where there is no npm: fetched from its registry, checked."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controller.web import vendored
from controller.web.vendored import SERVED, VendorError, bring, is_complete
from tests.support.installed import CHECKOUT


class QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def packed(files: dict[str, bytes]) -> bytes:
    """A package as npm's registry has it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a registry; this machine has no npm."""
    folder = tmp_path / "registry"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFiles, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setattr(shutil, "which", lambda program: None)
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def web(tmp_path: Path, registry: Path) -> Path:
    """The dashboard's folder with a lock of what the registry has."""
    packages: dict[str, object] = {"": {}}
    for name, files in SERVED.items():
        content = packed({file: f"{name} {file}".encode() for file in (*files, "LICENSE")})
        place = registry / name / "-" / f"{name.rpartition('/')[2]}-1.0.0.tgz"
        place.parent.mkdir(parents=True)
        place.write_bytes(content)
        digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
        packages[f"node_modules/{name}"] = {"version": "1.0.0", "integrity": f"sha512-{digest}"}
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "package-lock.json").write_text(json.dumps({"packages": packages}))
    return folder


def test_each_file_comes_with_its_license(web: Path) -> None:
    bring(web)
    vendor = web / "static/vendor"
    assert is_complete(web)
    assert (vendor / "xterm.mjs").read_text() == "@xterm/xterm lib/xterm.mjs"
    assert (vendor / "addon-fit.LICENSE.txt").read_text() == "@xterm/addon-fit LICENSE"


def test_what_is_complete_is_not_fetched_again(web: Path, registry: Path) -> None:
    bring(web)
    (registry / "uplot/-/uplot-1.0.0.tgz").unlink()
    bring(web)
    assert is_complete(web)


def test_a_file_that_was_changed_is_fetched_again(web: Path) -> None:
    bring(web)
    script = web / "static/vendor/htmx.min.js"
    script.write_text("changed")
    assert not is_complete(web)
    bring(web)
    assert script.read_text() == "htmx.org dist/htmx.min.js"


def test_another_package_than_the_pinned_one_is_refused(web: Path, registry: Path) -> None:
    (registry / "uplot/-/uplot-1.0.0.tgz").write_bytes(packed({"dist/uPlot.esm.js": b"another"}))
    with pytest.raises(VendorError, match=r"uplot-1\.0\.0\.tgz is not what package-lock\.json has"):
        bring(web)
    assert not (web / "static/vendor").exists()


def test_a_registry_that_lacks_the_package_is_named(web: Path, registry: Path) -> None:
    (registry / "uplot/-/uplot-1.0.0.tgz").unlink()
    with pytest.raises(VendorError, match=r"/uplot/-/uplot-1\.0\.0\.tgz cannot be fetched: "):
        bring(web)


def test_what_this_checkout_serves_is_what_npm_checked() -> None:
    modules = CHECKOUT / ".build/npm/node_modules"
    assert is_complete()
    for package, files in SERVED.items():
        for file in files:
            ours = vendored.WEB / "static/vendor" / Path(file).name
            assert ours.read_bytes() == (modules / package / file).read_bytes()
