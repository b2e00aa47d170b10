"""The entry point of the command: its list, an install for users alone, and namesakes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fairlead.cli.command_list import COMMANDS, GROUPS, listed
from fairlead.cli.main import make_app
from fairlead.daemons import without_namesakes
from tests.support.waiting import LONG

PROJECT = Path(__file__).parents[3]
WITHOUT_UVLOOP = (
    "import sys; sys.modules['uvloop'] = None; from fairlead.cli.main import main; main()"
)


def fairlead(*arguments: str, cwd: Path, program: str | None = None, **env: str) -> str:
    """The output of a command that starts as its console script does."""
    how = ("-c", program) if program else ("-m", "fairlead")
    ended = subprocess.run(
        [sys.executable, *how, *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG,
    )
    return ended.stdout + ended.stderr


def test_the_list_of_commands_has_all_of_them() -> None:
    app = make_app()
    known = {name for name in app if not name.startswith("-")}
    assert known == COMMANDS.keys() | GROUPS.keys()
    assert set(re.findall(r"^  ([a-z-]+) ", listed(), re.MULTILINE)) == known


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)], ids=str)
def test_the_list_of_commands_is_shown_without_the_library_for_arguments(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    program = (
        "import sys; from fairlead.cli.main import run; status = run(sys.argv[1:]);"
        " assert 'cyclopts' not in sys.modules; sys.exit(status)"
    )
    assert fairlead(*arguments, cwd=tmp_path, program=program, PYTHONPATH=str(PROJECT)) == listed()


def test_modules_of_the_user_are_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "controller.py").write_text("raise SystemExit('the module of the user')")
    for name in ("runner", "common"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the module of the user')")
    assert fairlead("--version", cwd=tmp_path, PYTHONPATH=f".:{tmp_path}:{PROJECT}") == "0.1.0\n"


def test_folders_without_namesakes_stay_on_the_search_path(tmp_path: Path) -> None:
    plain, own = tmp_path / "plain", tmp_path / "own"
    plain.mkdir()
    (own / "runner").mkdir(parents=True)
    path = [str(plain), str(own), str(PROJECT), str(tmp_path / "none")]
    assert without_namesakes(path, ["runner"]) == [str(plain), str(PROJECT), str(tmp_path / "none")]


def test_a_command_of_operators_says_how_to_install_what_it_lacks(tmp_path: Path) -> None:
    shown = fairlead(
        "controller", "--help", cwd=tmp_path, program=WITHOUT_UVLOOP, PYTHONPATH=str(PROJECT)
    )
    assert "pip install . './daemons[controller]'" in shown


def test_an_install_for_users_has_no_library_of_the_controller() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=\[; ]", need)[0] for need in project["dependencies"]}
    assert names == {"cronsim", "cyclopts", "msgspec", "pathspec", "pyyaml", "rich", "websockets"}
