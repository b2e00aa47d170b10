"""A job's surroundings when it starts: its folder, its user, its variables, its image."""

from __future__ import annotations

import os

import pytest

from tests.support.lab import RunLab

pytestmark = pytest.mark.e2e

WHO = ["echo $(id -u):$(id -g) $USER $HOME"]


def test_a_working_dir_is_made_and_used(lab: RunLab) -> None:
    result = lab.apply("folder", commands=["pwd", "touch here"], working_dir="/srv/deep/er")
    assert result.succeeded().output == "/srv/deep/er\n"


def test_variables_come_from_the_file_and_the_command_line_wins(lab: RunLab) -> None:
    env = {"FROM_FILE": "1 $HOME 'x'", "BOTH": "file", "NUMBER": 7}
    options = ["-e", "BOTH=command line", "-e", "EXTRA=a=b\nc"]
    commands = [f'echo "${name}"' for name in ("FROM_FILE", "BOTH", "NUMBER", "EXTRA")]
    result = lab.apply("variables", *options, env=env, commands=commands)
    assert result.succeeded().output == "1 $HOME 'x'\ncommand line\n7\na=b\nc\n"


def test_a_job_knows_its_run_and_attempt(lab: RunLab) -> None:
    names = ("RUN_NAME", "RUN_ID", "ATTEMPT_ID", "JOB_COUNT", "JOB_INDEX")
    commands = [f"echo $FAIRLEAD_{name}" for name in names]
    said = lab.apply("self-aware", commands=commands).succeeded().output.split()
    run = lab.inspect("self-aware")
    assert said == ["self-aware", run["id"], run["jobs"][0]["attempts"][0]["id"], "1", "0"]


def test_nothing_of_the_runner_disturbs_the_job_s_variables(lab: RunLab) -> None:
    printed = lab.apply("clean", entrypoint=["env"], env={"MINE": "1"}).succeeded().output
    names = {line.partition("=")[0] for line in printed.splitlines()}
    ours = {name for name in names if name.startswith("FAIRLEAD_")}
    assert names - ours == {"PATH", "HOSTNAME", "HOME", "USER", "LOGNAME", "MINE"}
    assert not [name for name in ours if "ORIG" in name]


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (None, "1234:1235 anna /home/anna"),
        ("root", "0:0 root /root"),
        ("anna:video", "1234:44 anna /home/anna"),
        (4321, "4321:0 4321 /"),
        ("4321:99", "4321:99 4321 /"),
    ],
)
def test_a_job_runs_as_the_user_it_asks_for(
    lab: RunLab, image_with_users: str, user: str | int | None, expected: str
) -> None:
    wanted = {} if user is None else {"user": user}
    name = f"as-{user}".lower().replace(":", "-")
    result = lab.apply(name, image=image_with_users, commands=WHO, **wanted)
    assert result.succeeded().output == f"{expected}\n"


def test_a_user_s_other_groups_come_from_the_image(lab: RunLab, image_with_users: str) -> None:
    result = lab.apply("groups", image=image_with_users, commands=["id -G"], user="anna")
    assert result.succeeded().output == "1235 44\n"


def test_an_unknown_user_is_named(lab: RunLab, image_with_users: str) -> None:
    result = lab.apply("as-nobody", image=image_with_users, user="berta", commands=["true"])
    assert result.status == 1
    assert "berta" in result.errors
    assert "Traceback" not in result.errors


def test_an_image_without_a_shell_runs_its_program(lab: RunLab, noshell_image: str) -> None:
    argv = ["/tool", "echo", "no shell"]
    result = lab.apply("bare", image=noshell_image, entrypoint=argv).succeeded()
    assert result.output == "no shell\n"


def test_an_image_without_a_shell_gets_its_variables(lab: RunLab, noshell_image: str) -> None:
    argv = ["/tool", "env"]
    result = lab.apply("bare-env", image=noshell_image, entrypoint=argv, env={"A": "1"})
    assert "A=1" in result.succeeded().output.splitlines()


def test_the_exit_code_of_a_program_without_a_shell_arrives(
    lab: RunLab, noshell_image: str
) -> None:
    argv = ["/tool", "exit", "42"]
    assert lab.apply("bare-exit", image=noshell_image, entrypoint=argv).status == 42


def test_a_name_without_a_value_takes_the_submitter_s(
    lab: RunLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "LAB_SECRET", "from here")
    result = lab.apply("taken", env=["LAB_SECRET"], commands=["echo $LAB_SECRET"])
    assert result.succeeded().output == "from here\n"
