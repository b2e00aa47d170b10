"""Modules in one file: what they say of themselves, and what is found elsewhere."""

from __future__ import annotations

import marshal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from entrypoint import module_file
from tests.support.waiting import LONG

PACKAGE = "kept_in_a_file"
FAILS = "def fail():\n    raise ValueError(__name__)\n"
LATER = """
import sys
sys.runs_of_later.append(__name__)
sys.before_later()
FOUND = len(sys.runs_of_later)
__all__ = ["FOUND"]
"""


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
        f"{PACKAGE}.later": (sources / "later.py", False, LATER),
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


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often the code of the module that is put off has begun."""
    runs: list[str] = []
    monkeypatch.setattr(module_file, "LATER", frozenset((f"{PACKAGE}.later",)))
    monkeypatch.setattr(sys, "runs_of_later", runs, raising=False)
    monkeypatch.setattr(sys, "before_later", lambda: None, raising=False)
    return runs


@pytest.mark.usefixtures("used")
def test_code_that_is_put_off_runs_when_it_is_first_needed(runs: list[str]) -> None:
    later = import_module(f"{PACKAGE}.later")
    assert import_module(PACKAGE).later is later
    assert (later.__name__, runs) == (f"{PACKAGE}.later", [])
    assert later.FOUND == 1
    assert (later.__all__, later.FOUND, runs) == (["FOUND"], 1, [later.__name__])


@pytest.mark.usefixtures("used")
def test_names_of_a_module_that_is_put_off_are_imported(runs: list[str]) -> None:
    assert runs == []
    found: dict[str, object] = {}
    exec(f"from {PACKAGE}.later import FOUND", found)
    assert found["FOUND"] == 1


@pytest.mark.usefixtures("used", "runs")
def test_a_module_that_is_put_off_has_no_other_attributes() -> None:
    later = import_module(f"{PACKAGE}.later")
    assert not hasattr(later, "__path__")
    for _ in range(2):
        with pytest.raises(AttributeError, match=r"'kept_in_a_file\.later' has no attribute"):
            later.missing  # noqa: B018 (to ask for it)


@pytest.mark.usefixtures("used")
def test_code_that_failed_runs_again(runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(sys, "before_later", fail)
    later = import_module(f"{PACKAGE}.later")
    with pytest.raises(OSError, match="too many open files"):
        later.FOUND  # noqa: B018 (to ask for it)
    monkeypatch.setattr(sys, "before_later", lambda: None)
    assert (later.FOUND, len(runs)) == (2, 2)


@pytest.mark.usefixtures("used")
def test_threads_wait_for_code_that_another_one_runs(
    runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(LONG)

    monkeypatch.setattr(sys, "before_later", hold)
    later, found = import_module(f"{PACKAGE}.later"), list[int]()
    threads = [threading.Thread(target=lambda: found.append(later.FOUND)) for _ in range(3)]
    threads[0].start()
    assert begun.wait(LONG)
    for thread in threads[1:]:
        thread.start()
    assert found == []
    go_on.set()
    for thread in threads:
        thread.join(LONG)
    assert (found, len(runs)) == ([1, 1, 1], 1)


def test_no_module_that_is_put_off_is_a_package() -> None:
    show = "import sys, importlib; [importlib.import_module(name) for name in sys.argv[1:]]; "
    show += "print([name for name in sys.argv[1:] if hasattr(sys.modules[name], '__path__')])"
    argv = [sys.executable, "-c", show, *sorted(module_file.LATER), *sorted(module_file.GIVEN)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "[]\n"


MAKES_A_URL = """
import marshal, sys
from pathlib import Path
from entrypoint import module_file
for name in [*sys.modules]:
    if name == "urllib.parse" or name.partition(".")[0] == "pathlib":
        del sys.modules[name]
code = compile(Path(sys.argv[1]).read_bytes(), sys.argv[1], "exec")
of_file = {"urllib.parse": (sys.argv[1], False, marshal.dumps(code))}
Path(sys.argv[2], module_file.PATH).write_bytes(module_file.content(of_file))
sys.path.insert(0, sys.argv[2])
module_file.use()
import pathlib, urllib.parse
print("urlsplit" in vars(urllib.parse), pathlib.Path("/a b%").as_uri(),
      "urlsplit" in vars(urllib.parse), pathlib.Path("/é").as_uri())
"""


def test_a_path_becomes_a_url_by_the_code_that_was_put_off(tmp_path: Path) -> None:
    source = str(import_module("urllib.parse").__file__)
    argv = [sys.executable, "-c", MAKES_A_URL, source, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "file:///a%20b%25", "True", "file:///%C3%A9"]


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
