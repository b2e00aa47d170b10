"""The commands of an environment that has the client alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.installed import Environment


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("fairlead controller --data d", "controller"),
        ("fairlead controller backup --data d b", "controller"),
        ("fairlead gateway run --listen x", "gateway"),
        ("fairlead-shim --help", "node"),
        ("fairlead-runner --help", "node"),
        ("fairlead-entrypoint --socket s --task .", "node"),
    ],
)
def test_a_daemon_that_is_not_installed_says_which_extra_brings_it(
    for_users: Environment, tmp_path: Path, command: str, extra: str
) -> None:
    done = for_users.run(*command.split(), cwd=tmp_path)
    words = command.split()
    named = " ".join(words[: {"node": 1, "controller": 2, "gateway": 3}[extra]])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(
        f"`{named}` needs more than the client brings: install it with "
        f"`pip install 'fairlead[{extra}]'`\n"
    )


def test_the_commands_of_users_need_no_extra(for_users: Environment, tmp_path: Path) -> None:
    for words in ("apply", "attach", "ps", "ssh", "secret set", "service key add", "outputs"):
        done = for_users.run("fairlead", *words.split(), "--help", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert "Usage: fairlead" in done.stdout


def test_the_daemons_of_a_node_start_with_their_extra(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    node = Environment(tmp_path_factory.mktemp("node") / "venv", wheel, "node")
    for program in ("fairlead-shim", "fairlead-runner", "fairlead-entrypoint"):
        done = node.run(program, "--help", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert program in done.stdout
