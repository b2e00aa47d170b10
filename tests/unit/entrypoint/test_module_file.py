"""Modules in one file: what they say of themselves, and what is found elsewhere."""

from __future__ import annotations

import marshal
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from entrypoint import module_file

PACKAGE = "kept_in_a_file"
FAILS = "def fail():\n    raise ValueError(__name__)\n"


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[Path]:
    """The folder of a package with one module in the file and one that is not in it."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('not from the file')")
    (folder / "other.py").write_text("found_at = __file__\n")
    (folder / "failing.py").write_text(FAILS)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def file(sources: Path, tmp_path: Path) -> Path:
    modules = {
        PACKAGE: (sources / "__init__.py", True, "NAME = __name__\n"),
        f"{PACKAGE}.failing": (sources / "failing.py", False, FAILS),
    }
    content = module_file.content(
        {
            name: (str(path), is_package, marshal.dumps(compile(code, str(path), "exec")))
            for name, (path, is_package, code) in modules.items()
        }
    )
    file = tmp_path / module_file.PATH
    file.write_bytes(content)
    return file


@pytest.fixture
def used(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", [str(file.parent), *sys.path])
    used = module_file.use()
    assert used is not None
    yield
    used.close()


@pytest.mark.usefixtures("used")
def test_a_module_of_the_file_is_loaded_from_it_and_knows_its_source(sources: Path) -> None:
    package = import_module(PACKAGE)
    assert package.NAME == PACKAGE
    assert package.__file__ == str(sources / "__init__.py")
    assert list(package.__path__) == [str(sources)]


@pytest.mark.usefixtures("used")
def test_a_module_beside_the_file_is_found_in_its_package(sources: Path) -> None:
    other = import_module(f"{PACKAGE}.other")
    assert other.found_at == str(sources / "other.py")


@pytest.mark.usefixtures("used")
def test_a_traceback_shows_the_line_of_the_source(sources: Path) -> None:
    failing = import_module(f"{PACKAGE}.failing")
    with pytest.raises(ValueError, match=PACKAGE) as raised:
        failing.fail()
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.line) == (str(sources / "failing.py"), "raise ValueError(__name__)")


def test_without_the_file_imports_are_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(sys.meta_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert module_file.use() is None
    assert sys.meta_path == before
