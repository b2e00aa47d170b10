"""Dev environments: what is accepted, what is refused, and the commands that become the IDE."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from controller.lifecycle.model import JobSpec, RunType
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, Plan, to_run
from fairlead.model.dev_environment import Ide
from fairlead.model.service import Serves
from fairlead.wire.job import script
from fairlead.wire.shim import VolumeKind
from tests.support.waiting import LONG
from tests.unit.configuration.dstack_corpus import OPERATORS, SHAPES, environment, planned, refusal
from tests.unit.configuration.test_dstack import GPUS

DEV_ENVIRONMENTS = [one for one in SHAPES if one.get("type") == "dev-environment"]
REFUSED = ["dstack", "instances", *["resources.gpu"] * 3]


def plan(**fields: Any) -> Plan:
    written = {"type": "dev-environment", **fields}
    return to_run(parse(written), written, Defaults())


def spec(**fields: Any) -> JobSpec:
    return plan(**fields).specs[0]


def test_a_dev_environment_needs_nothing_but_its_type() -> None:
    made = plan()

    assert made.type is RunType.DEV_ENVIRONMENT
    assert [group.group.nodes for group in made.groups] == [1]
    assert made.specs[0].image.startswith("astral/uv:python")
    assert made.specs[0].working_dir == "/workflow"
    assert made.specs[0].serves is None


def test_init_runs_before_what_keeps_it_alive_and_is_no_container_process() -> None:
    made = spec(ide="vscode", init=["a", "b"], image="x")

    assert made.commands == ("a", "b", "exec tail -f /dev/null")
    assert not made.container.init
    assert "UV_SYSTEM_PYTHON" not in made.env


def test_its_policy_says_how_it_is_opened_and_when_it_is_left_alone() -> None:
    wanted = plan(ide="zed", inactivity_duration="2h", working_dir="/code", retry=True).policy

    assert wanted.dev_environment is not None
    assert wanted.dev_environment.ide is Ide.ZED
    assert wanted.dev_environment.folder == "/code"
    assert wanted.dev_environment.inactivity_duration == 7200.0
    assert wanted.retry.duration == Defaults().retry_true_duration
    off = plan(inactivity_duration="off").policy.dev_environment
    assert off is not None
    assert off.inactivity_duration is None


@pytest.mark.parametrize(("ide", "port"), [("jupyter", 8888), ("code-server", 8443)])
def test_an_ide_in_the_browser_serves_a_port(ide: str, port: int) -> None:
    assert spec(ide=ide).serves == Serves(port=port)


@pytest.mark.parametrize(
    ("fields", "kind", "source", "target"),
    [
        ({"home": True, "name": "desk"}, VolumeKind.NAMED, "desk-home", "/root"),
        ({"home": "work"}, VolumeKind.NAMED, "work", "/root"),
        ({"home": "/shared/ada"}, VolumeKind.HOST, "/shared/ada", "/root"),
        ({"home": "work:/home/ada", "user": "ada"}, VolumeKind.NAMED, "work", "/home/ada"),
    ],
)
def test_a_home_is_kept_on_a_volume(
    fields: dict[str, Any], kind: VolumeKind, source: str, target: str
) -> None:
    made = spec(**fields)

    assert [(one.kind, one.source, one.target) for one in made.volumes] == [(kind, source, target)]
    assert made.working_dir == target


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"commands": ["a"]}, "commands", "as init"),
        ({"entrypoint": "a"}, "entrypoint", "as init"),
        ({"nodes": 2}, "nodes", "one job on one node"),
        ({"gang": True}, "gang", "one job on one node"),
        ({"groups": [{"name": "a"}]}, "groups", "one job on one node"),
        ({"script": "a"}, "script", "as init"),
        ({"init": True}, "init", "not a list"),
        ({"ide": "emacs"}, "ide", "is not known"),
        ({"version": "1.2"}, "version", "needs ide"),
        ({"ide": "code-server", "version": "4.9"}, "version", "the image's code-server"),
        ({"ide": "jupyter", "version": "4; rm"}, "version", "is not a version"),
        ({"inactivity_duration": 0}, "inactivity_duration", "at once"),
        ({"ide": "vscode", "ssh": "off"}, "ssh", "nothing else leads to it"),
        ({"ide": "jupyter", "name": "a-"}, "name", "hyphen"),
        ({"home": True}, "home", "no name to name the volume"),
        ({"home": False}, "home", "neither true nor a volume"),
        ({"home": "UPPER"}, "home", "not the name of a volume"),
        ({"home": "work", "user": "ada"}, "home", "where the home of ada is"),
        ({"home": "work", "volumes": ["a:/root"]}, "home", "mounted, too"),
        ({"stop_criteria": "all-done"}, "stop_criteria", "is for tasks"),
        ({"replicas": 2}, "replicas", "is for services"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_with_its_field(
    fields: dict[str, Any], field: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan(**fields)

    assert caught.value.field == field
    assert sentence in caught.value.message


@pytest.mark.parametrize("field", ["ide", "inactivity_duration", "home"])
def test_a_task_with_a_field_of_dev_environments_is_told_so(field: str) -> None:
    with pytest.raises(ConfigurationError, match="type: dev-environment"):
        parse({"type": "task", "commands": ["a"], field: "1h"})


# -- the commands, run by a shell -----------------------------------------------------------


def run(tmp_path: Path, programs: dict[str, str], **fields: Any) -> tuple[int, str, str]:
    """Run the job's script with these programs and no others."""
    for name, text in {"command": "", **programs}.items():
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path), "FAIRLEAD_RUN_NAME": "notes"}
    argv = ["/bin/sh", "-c", script(spec(**fields).commands)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LONG, check=False)
    return done.returncode, done.stdout, done.stderr


LAB = 'test "$1" = --version && echo 4.4.2 || echo lab "$@"'


def test_the_jupyterlab_of_the_image_is_started_below_its_path(tmp_path: Path) -> None:
    status, said, _ = run(tmp_path, {"jupyter-lab": LAB}, ide="jupyter")

    assert (status, said.split()[0]) == (0, "lab")
    options = said.split()
    assert "--ip=127.0.0.1" in options
    assert "--port=8888" in options
    assert "--ServerApp.base_url=/services/notes/" in options
    assert "--IdentityProvider.token=" in options


def test_another_version_of_jupyterlab_is_brought_by_uv(tmp_path: Path) -> None:
    programs = {"jupyter-lab": LAB, "uv": 'echo uv "$@"'}
    _, said, _ = run(tmp_path, programs, ide="jupyter", version="4.4.9")
    _, present, _ = run(tmp_path, programs, ide="jupyter", version="4.4.2")

    assert said.splitlines()[0] == "uv pip install --quiet --system jupyterlab==4.4.9"
    assert present.startswith("lab ")


@pytest.mark.parametrize(
    ("ide", "word"), [("jupyter", "uv or Python"), ("code-server", "volumes:")]
)
def test_an_ide_that_is_not_there_ends_the_job_with_a_sentence(
    tmp_path: Path, ide: str, word: str
) -> None:
    status, _, said = run(tmp_path, {}, ide=ide)

    assert status == 1
    assert word in said


def test_the_code_server_of_the_image_asks_for_no_password(tmp_path: Path) -> None:
    _, said, _ = run(tmp_path, {"code-server": 'echo "$@"'}, ide="code-server")

    assert said.startswith("--bind-addr 127.0.0.1:8443 --auth none")


def test_init_that_fails_ends_it_before_the_ide(tmp_path: Path) -> None:
    assert run(tmp_path, {"jupyter-lab": LAB}, ide="jupyter", init=["(exit 3)"])[:2] == (3, "")


# -- files of dstack ------------------------------------------------------------------------


def test_nearly_all_dev_environments_of_the_corpus_are_accepted() -> None:
    refused = [why for one in DEV_ENVIRONMENTS if (why := refusal(one)) is not None]

    assert len(DEV_ENVIRONMENTS) == 44
    assert sorted(why.partition(":")[0] for why in refused) == REFUSED
    assert all(": " in why for why in refused)


@pytest.mark.parametrize("written", DEV_ENVIRONMENTS, ids=str)
def test_a_dev_environment_of_the_corpus_keeps_its_meaning(written: dict[str, Any]) -> None:
    if refusal(written) is not None:
        return
    made = planned(written)
    (job,), wanted = made.specs, made.policy.dev_environment
    assert wanted is not None
    assert wanted.ide == written.get("ide")
    hours = {"2h": 7200.0, None: None}
    assert wanted.inactivity_duration == hours[written.get("inactivity_duration")]
    assert made.policy.max_duration == {"8h": 28800.0, None: None}[written.get("max_duration")]
    assert bool(made.policy.schedule) is ("schedule" in written)
    init = (["start-dockerd"] if written.get("docker") else []) + written.get("init", [])
    assert list(job.commands) == [*init, "exec tail -f /dev/null"]
    if "image" in written:
        assert job.image == written["image"]
    elif written.get("nvcc"):
        assert job.image == OPERATORS.nvcc_image
    elif not written.get("docker"):
        assert f"python{written.get('python', '3.13')}-" in job.image
        assert job.python == (str(written["python"]) if "python" in written else None)
    for name in environment(written):
        assert job.env[name] == "v"
    asked = written.get("resources", {})
    gpu = json.dumps(asked.get("gpu"))
    assert job.resources.gpu.count == (GPUS[gpu].count if gpu in GPUS else bool("gpu" in asked))
    assert job.container.privileged is bool(written.get("privileged") or written.get("docker"))
    assert [volume.target for volume in job.volumes] == [
        one.partition(":")[2] if isinstance(one, str) else "/text"
        for one in written.get("volumes", [])
    ]
