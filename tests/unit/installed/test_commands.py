"""The commands of an environment that has the client alone, and what is importable there."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.installed import Environment, build_wheel
from tests.support.processes import ControllerProcess

pytestmark = pytest.mark.long  # wheels are built and installed
NAMES = """
from importlib import metadata
found = {str(file).split("/")[0].removesuffix(".py") for file in metadata.files("fairlead")}
print(*sorted(name for name in found if not name.endswith((".dist-info", ".."))))
"""
PROGRAM = """
from fairlead import Client, Task, views
with Client() as client:
    run = client.submit(Task(name="x", commands=["true"]))
    plan: views.PlanView = client.plan("task.yaml")
    print(run.name, run.state.status, plan.jobs[0].job)
"""
OUR_NAMES = ("common", "controller", "entrypoint", "gateway", "installer", "runner", "shim")


@pytest.mark.parametrize(
    ("command", "more", "extra"),
    [
        ("controller", "--data d", "controller"),
        ("controller", "backup --data d b", "controller"),
        ("node install", "host", "controller"),
        ("node upgrade", "--all", "controller"),
        ("apply", "-f fleet.yaml", "controller"),
        ("gateway run", "--listen x", "gateway"),
        ("gateway setup", "--help", "gateway"),
    ],
)
def test_a_command_of_the_daemons_says_which_extra_brings_it(
    for_users: Environment, tmp_path: Path, command: str, more: str, extra: str
) -> None:
    (tmp_path / "fleet.yaml").write_text("type: fleet\nname: f\nhosts: [a]\n")
    done = for_users.run("fairlead", *command.split(), *more.split(), cwd=tmp_path)
    named = f"fairlead {command}" + (" fleet" if command == "apply" else "")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"fairlead: `{named}` needs more than the client brings: run "
        f"`pip install . './daemons[{extra}]'` in a checkout of Fairlead\n"
    )


def test_a_daemon_without_its_libraries_says_which_extra_brings_them(
    client_wheel: Path, daemons_wheel: Path, tmp_path: Path
) -> None:
    bare = Environment(tmp_path / "venv", client_wheel, daemons_wheel)
    for program, more, extra in (
        ("fairlead controller", "--help", "controller"),
        ("fairlead gateway run", "--help", "gateway"),
        ("fairlead-shim", "--help", "node"),
        ("fairlead-runner", "--help", "node"),
        ("fairlead-entrypoint", "--socket s --task .", "node"),
    ):
        done = bare.run(*program.split(), *more.split(), cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith(
            f"`{program}` needs more than the client brings: run "
            f"`pip install . './daemons[{extra}]'` in a checkout of Fairlead\n"
        )


def test_the_commands_of_users_need_no_extra(for_users: Environment, tmp_path: Path) -> None:
    for words in ("apply", "attach", "ps", "ssh", "secret set", "service key add", "node add"):
        done = for_users.run("fairlead", *words.split(), "--help", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert "Usage: fairlead" in done.stdout


def test_the_help_lists_the_commands_that_are_not_installed(
    for_users: Environment, tmp_path: Path
) -> None:
    for words, listed in (("", "controller"), ("node", "upgrade"), ("gateway", "setup")):
        done = for_users.run("fairlead", *words.split(), "--help", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert listed in done.stdout


def test_the_client_brings_one_importable_name(for_users: Environment, tmp_path: Path) -> None:
    done = for_users.run("python", "-c", NAMES, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("fairlead\n", "")
    for name in OUR_NAMES:
        done = for_users.run("python", "-c", f"import {name}", cwd=tmp_path)
        assert f"No module named '{name}'" in done.stderr


def test_the_launcher_of_hydra_is_a_distribution_of_its_own(checkout: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(checkout / "hydra_plugins", tmp_path)) as wheel:
        code = sorted(name for name in wheel.namelist() if ".dist-info/" not in name)
        (about,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        lines = wheel.read(about).decode().splitlines()
    modules = ("__init__", "config", "in_job", "launcher")
    assert code == [f"hydra_plugins/fairlead_launcher/{name}.py" for name in modules]
    version = metadata.version("fairlead")
    assert {f"Version: {version}", f"Requires-Dist: fairlead[submitit]=={version}"} <= {*lines}


@pytest.fixture
def beside_namesakes(tmp_path: Path) -> Path:
    """A user's folder with packages that have the names of ours."""
    for name in OUR_NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the package of the user')")
    (tmp_path / "task.yaml").write_text("type: task\ncommands: [hello]\n")
    return tmp_path


def test_packages_of_the_user_with_names_of_the_daemons_do_no_harm(
    for_users: Environment,
    for_operators: Environment,
    beside_namesakes: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("served")
    controller = ControllerProcess(folder / "controller", programs=for_operators.bin)
    controller.start()
    try:
        logged_in = controller.env
        program = beside_namesakes / "program.py"
        program.write_text(PROGRAM)
        done = for_users.run("python", program, cwd=beside_namesakes, env=logged_in)
        assert (done.stderr, done.stdout.split()[0]) == ("", "x")
        for command in (("fairlead",), ("python", "-m", "fairlead")):
            done = for_users.run(*command, "plan", "task.yaml", cwd=beside_namesakes, env=logged_in)
            assert (done.returncode, "main/0" in done.stdout) == (0, True), done.stderr
    finally:
        controller.stop()
        controller.close()


def test_the_commands_of_the_daemons_do_not_take_the_users_packages_for_ours(
    for_operators: Environment, beside_namesakes: Path
) -> None:
    for words in ("controller --help", "node install --help"):
        done = for_operators.run("python", "-m", "fairlead", *words.split(), cwd=beside_namesakes)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_daemons_of_a_node_start_with_their_extra(
    for_nodes: Environment, tmp_path: Path
) -> None:
    for program in ("fairlead-shim", "fairlead-runner", "fairlead-entrypoint"):
        done = for_nodes.run(program, "--help", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert program in done.stdout


def test_a_gateway_needs_its_extra_alone_and_no_database(
    client_wheel: Path,
    daemons_wheel: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> None:
    folder = tmp_path_factory.mktemp("gateway") / "venv"
    gateway = Environment(folder, client_wheel, daemons_wheel, "gateway")
    assert not (gateway.site / "sqlalchemy").exists()
    for command in ("run", "setup"):
        done = gateway.run("fairlead", "gateway", command, "--help", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"Usage: fairlead gateway {command}" in done.stdout
