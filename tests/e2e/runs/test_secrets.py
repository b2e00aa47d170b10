"""A secret is where the job needs it, and nowhere else: a canary is planted, then looked for."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.planted_secrets import in_files, leaks
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def canary() -> str:
    return f"canary-{secrets.token_hex(8)}"


def test_the_value_of_a_variable_reaches_the_job_alone(lab: RunLab, canary: str) -> None:
    test = f'[ -n "$TOKEN" ] && echo "has it"; {UNTIL_ASKED}; exit 3'
    lab.start("env-canary", env={"TOKEN": canary}, commands=[test])
    lab.wait_for_log("env-canary", b"has it")
    assert leaks(lab, "env-canary", canary) == []
    lab.shim.restart()
    lab.let_go("env-canary")
    lab.wait_for("env-canary", "failed")
    assert leaks(lab, "env-canary", canary) == []


def test_a_secret_that_its_job_prints_is_nowhere_on_disk(
    lab: RunLab, canary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", canary)
    tell = 'echo "it is $TOKEN"; echo "$TOKEN" >&2; echo told'
    lab.start("told-canary", secrets=["TOKEN"], commands=[f"{tell}; {UNTIL_ASKED}; exit 3"])
    lab.wait_for_log("told-canary", b"told")
    assert leaks(lab, "told-canary", canary) == []
    lab.controller.restart()
    lab.shim.restart()
    lab.let_go("told-canary")
    lab.wait_for("told-canary", "failed")
    assert leaks(lab, "told-canary", canary) == []
    assert b"it is ***" in lab.log("told-canary")


def test_a_stored_secret_reaches_the_job_that_names_it_alone(
    lab: RunLab, canary: str, tmp_path: Path
) -> None:
    for name, value in (("HF", canary), ("OTHER", f"other-{canary}")):
        (tmp_path / name).write_text(f"{value}\n")
        lab.cli("secret", "set", name, "--from-file", tmp_path / name).succeeded()
    tell = (
        'echo "it is $TOKEN"; env | grep -c other-; [ "$TOKEN" = "Bearer $(cat x)" ] && echo same'
    )
    env = {"TOKEN": "Bearer ${{ secrets.HF }}"}
    auth = {"username": "anna", "password": "${{ secrets.OTHER }}"}
    command = f"printf %s {canary[:8]} >x; printf %s {canary[8:]} >>x; {tell}; rm x; {UNTIL_ASKED}"
    lab.start("stored-canary", env=env, registry_auth=auth, commands=[command])
    lab.wait_for_log("stored-canary", b"same")
    assert leaks(lab, "stored-canary", canary) == []
    assert list(in_files(lab.controller.data, canary)) == []
    lab.cli("secret", "rotate-key").succeeded()
    lab.cli("secret", "delete", "HF").succeeded()
    lab.shim.restart()
    lab.controller.restart()
    assert leaks(lab, "stored-canary", canary) == []
    lab.let_go("stored-canary")
    lab.wait_for("stored-canary", "done")
    assert lab.log("stored-canary").splitlines() == [b"it is ***", b"0", b"same"]
    refused = lab.apply("stored-canary", env=env, commands=["true"])
    assert (refused.status, "there is no secret HF" in refused.errors) == (1, True)


def test_a_registry_password_reaches_the_pull_alone(lab: RunLab, canary: str) -> None:
    auth = {"username": "anna", "password": canary}
    lab.start("auth-canary", commands=[UNTIL_ASKED], registry_auth=auth)
    assert leaks(lab, "auth-canary", canary) == []
    lab.let_go("auth-canary")
    lab.wait_for("auth-canary", "done")
    assert leaks(lab, "auth-canary", canary) == []


def test_a_failed_pull_does_not_tell_the_password(lab: RunLab, canary: str) -> None:
    auth = {"username": "anna", "password": canary}
    image = "127.0.0.1:1/private:1"
    result = lab.apply("pull-canary", image=image, commands=["true"], registry_auth=auth)
    assert result.status == 1
    assert canary not in result.output + result.errors
    assert leaks(lab, "pull-canary", canary) == []


def test_a_password_can_be_taken_from_the_environment(
    lab: RunLab, canary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", canary)
    auth = {"username": "anna", "password": "${REGISTRY_PASSWORD}"}
    lab.apply("taken-canary", commands=["true"], registry_auth=auth).succeeded()
    assert leaks(lab, "taken-canary", canary) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"registry_auth": "CANARY"},
        {"registry_auth": {"username": "anna", "password": ["CANARY"]}},
        {"registry_auth": {"username": "anna", "passwort": "CANARY"}},
        {"registry_auth": ["CANARY"]},
        {"env": {"TOKEN": ["CANARY"]}},
        {"env": ["BAD NAME=CANARY"]},
        {"env": "TOKEN=CANARY"},
        {"env": [{"TOKEN": "CANARY"}]},
    ],
)
def test_a_refusal_does_not_repeat_a_secret(
    lab: RunLab, canary: str, fields: dict[str, object]
) -> None:
    file = lab.write(commands=["true"], **fields)
    file.write_text(file.read_text().replace("CANARY", canary))
    result = lab.cli("apply", "-f", file)
    assert result.status == 2
    assert str(file) in result.errors
    assert canary not in result.output + result.errors
    assert canary not in lab.controller.daemon.log.read_text(errors="replace")


def test_only_the_controllers_user_reads_its_files(lab: RunLab) -> None:
    modes = {
        path.name: oct(path.stat().st_mode & 0o077) for path in (lab.controller.data, *_files(lab))
    }
    assert set(modes.values()) == {"0o0"}, modes


def _files(lab: RunLab) -> list[Path]:
    return [path for path in lab.controller.data.iterdir() if path.is_file()]


def test_a_runs_secrets_leave_the_controllers_files_soon_after_its_end(
    lab: RunLab, canary: str
) -> None:
    fields = {
        "env": {"TOKEN": canary},
        "registry_auth": {"username": "anna", "password": canary},
        "commands": [f"{UNTIL_ASKED}; exit 3"],
    }
    for name, killed in (("ended-canary", False), ("killed-canary", True)):
        lab.start(name, **fields)
        assert list(in_files(lab.controller.data, canary))
        lab.let_go(name)
        lab.wait_for(name, "failed")
        if killed:
            lab.controller.restart()
        wait_until(lambda: not list(in_files(lab.controller.data, canary)), what="clean files")
