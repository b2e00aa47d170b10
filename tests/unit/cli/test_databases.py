"""Where a controller's database is, said without showing a password; backups by command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from controller.commands.database_url import VARIABLE, find_database
from controller.store.postgresql import PostgresqlDatabase
from controller.store.sqlite import SqliteDatabase
from fairlead.cli.errors import CliError
from fairlead.cli.main import run

URL = "postgresql://fairlead:hunter2@db.example/fairlead"


def test_without_a_word_it_is_a_file_in_the_folder(tmp_path: Path) -> None:
    assert isinstance(find_database(tmp_path, None, None, {}), SqliteDatabase)


@pytest.mark.parametrize("environment", [{}, {VARIABLE: "postgresql://other/other"}])
def test_a_file_comes_before_the_environment(
    tmp_path: Path, environment: Mapping[str, str]
) -> None:
    file = tmp_path / "url"
    file.write_text(f"{URL}\n")
    assert isinstance(find_database(tmp_path, None, file, environment), PostgresqlDatabase)


def test_the_environment_is_enough(tmp_path: Path) -> None:
    assert isinstance(find_database(tmp_path, None, None, {VARIABLE: URL}), PostgresqlDatabase)


@pytest.mark.parametrize("url", [URL, "postgresql://db/fairlead?user=a&password=hunter2"])
def test_a_password_in_a_command_line_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(CliError, match=f"{VARIABLE} or a file") as caught:
        find_database(tmp_path, url, None, {})
    assert "hunter2" not in str(caught.value)


def test_a_wrong_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"--database: .*postgresql://USER@HOST/DATABASE"):
        find_database(tmp_path, "sqlite:///x", None, {})
    with pytest.raises(CliError, match=r"--database-file .*none: No such file"):
        find_database(tmp_path, None, tmp_path / "none", {})
    with pytest.raises(CliError, match="not both"):
        find_database(tmp_path, "postgresql://db/x", tmp_path / "none", {})


def test_failures_of_backup_and_restore_are_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(tmp_path / "data")]
    assert run(["controller", "backup", str(tmp_path / "b"), *data]) == 1
    assert "there is no controller's database" in capsys.readouterr().err
    assert run(["controller", "restore", str(tmp_path / "b"), *data]) == 1
    assert "No such file" in capsys.readouterr().err
    assert run(["controller", "mark-restored", *data]) == 1
    assert "no controller's database to mark" in capsys.readouterr().err
    assert run(["controller", *data, "--keep-runs", "soon"]) == 2
    assert "--keep-runs: " in capsys.readouterr().err
