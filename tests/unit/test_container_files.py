"""The controller's image and the compose file next to it promise what their pages say."""

from __future__ import annotations

import re
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.proofs.compose import page_steps, upgrade_check
from controller.commands.databases import app
from tests.support import compose_images

_CHECKOUT = Path(__file__).parents[2]
_FOLDER = _CHECKOUT / "packer/container"
_IMAGE = (_FOLDER / "Containerfile").read_text()
_COMPOSE: dict[str, Any] = yaml.safe_load((_FOLDER / "compose.yaml").read_text())
_MANIFESTS: dict[tuple[str, str], dict[str, Any]] = {
    (one["kind"], one["metadata"]["name"]): one
    for one in yaml.safe_load_all((_CHECKOUT / "packer/kubernetes/controllers.yaml").read_text())
}
_CONTROLLERS = ("c1", "c2", "c3")


def test_the_image_runs_as_no_root_and_installs_what_the_lock_has() -> None:
    last = _IMAGE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    # asyncssh asks getpass, which finds no name of this user elsewhere: it reached no node.
    assert re.search(r"^ENV .*\bLOGNAME=fairlead$", last, re.MULTILINE)
    assert "--require-hashes -r requirements.lock" in _IMAGE
    assert "--no-deps --no-build-isolation . ./daemons" in _IMAGE
    assert not re.search(r"^(ENV|ARG) .*(PASSWORD|TOKEN|SECRET)", _IMAGE, re.MULTILINE)


def test_the_image_has_each_package_of_both_distributions_and_nothing_of_the_machine() -> None:
    lines = (_FOLDER / "Containerfile.dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    taken = {line.removeprefix("!") for line in lines if line.startswith("!")}
    packages = {path.parent.name for path in _CHECKOUT.glob("*/__init__.py")}
    assert packages - {"bench", "tests", "docs", "examples"} <= taken
    assert all((_CHECKOUT / name).exists() for name in taken - {"wheels"})
    assert not taken & {".git", ".venv", ".build", "tests"}


@pytest.mark.parametrize("name", _CONTROLLERS)
def test_each_controller_of_the_compose_file_is_confined(name: str) -> None:
    service = _COMPOSE["services"][name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["secrets"] == ["database-url"]
    healthy = {"condition": "service_healthy"}
    # The first one makes the keys for all.
    first = {} if name == "c1" else {"c1": healthy}
    assert service["depends_on"] == {"database": healthy, "bucket": healthy, **first}


@pytest.mark.parametrize("name", _CONTROLLERS)
def test_each_controller_starts_with_options_that_it_knows(name: str) -> None:
    entry = re.search(r"^ENTRYPOINT (.+)$", _IMAGE, re.MULTILINE)
    assert entry is not None
    argv = [*yaml.safe_load(entry[1])[2:], *_COMPOSE["services"][name]["command"]]
    _, bound, _ = app.parse_args(argv, print_error=False, exit_on_error=False)
    assert bound.arguments["url"] == f"http://{name}:8700"
    assert bound.arguments["listen"] == "0.0.0.0:8700"
    assert str(bound.arguments["database_file"]) == "/run/secrets/database-url"
    bucket = bound.arguments["bucket"].parse()
    assert (str(bucket), bucket.endpoint) == ("s3://fairlead/first", "http://bucket:9000")


def test_the_page_asks_the_next_version_with_the_options_of_the_compose_file() -> None:
    words = shlex.split(upgrade_check().replace("\\\n", " "))
    at = words.index("c1")
    assert " ".join(words[:at]) == "docker compose run --rm --no-deps --entrypoint fairlead"
    assert words[at + 1 : at + 3] == ["controller", "upgrade-check"]
    _, bound, _ = app.parse_args(words[at + 2 :], print_error=False, exit_on_error=False)
    of_service = _COMPOSE["services"]["c1"]["command"]
    assert f"--database-file={bound.arguments['database_file']}" in of_service
    bucket = bound.arguments["bucket"].parse()
    assert {f"--bucket={bucket}", f"--bucket-endpoint={bucket.endpoint}"} <= set(of_service)
    entry = re.search(r'^ENTRYPOINT .*"--data", "([^"]+)"', _IMAGE, re.MULTILINE)
    assert entry is not None
    assert str(bound.arguments["data"]) == entry[1]


def test_no_password_is_in_the_files() -> None:
    text = (_FOLDER / "compose.yaml").read_text()
    assert "POSTGRES_PASSWORD:" not in text
    assert "AWS_SECRET" not in text
    assert set(_COMPOSE["secrets"]) == {"database-password", "database-url"}
    assert {one["file"] for one in _COMPOSE["secrets"].values()} == {
        "./database-password",
        "./database-url",
    }


def test_all_controllers_of_the_compose_file_differ_in_name_and_port_alone() -> None:
    first, *others = ({**_COMPOSE["services"][name]} for name in _CONTROLLERS)
    for one in others:
        different = {key for key in first.keys() | one.keys() if first.get(key) != one.get(key)}
        assert different == {"command", "ports", "depends_on"}


def test_the_proof_finds_the_steps_of_the_page_and_has_images_of_the_names_in_the_files() -> None:
    begin, kill = page_steps()
    assert "docker build -f packer/container/Containerfile" in begin
    assert "docker compose up -d --wait" in begin
    assert kill.startswith("docker compose kill c1 ")
    base, *others = compose_images.names()
    assert base.startswith(f"docker.io/library/python:{compose_images.PYTHON}-")
    images = {service["image"] for service in _COMPOSE["services"].values()}
    assert images == {"fairlead-controller", *others}


def test_volumes_and_secrets_of_the_compose_file_are_declared() -> None:
    for service in _COMPOSE["services"].values():
        volumes = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert volumes <= set(_COMPOSE["volumes"])
        assert set(service.get("secrets", ())) <= set(_COMPOSE["secrets"])
        if service["image"] != "fairlead-controller":
            # Without it, three failed checks during the first start end `up`.
            assert service["healthcheck"]["start_period"] == "120s"


def pod() -> dict[str, Any]:
    template: dict[str, Any] = _MANIFESTS["StatefulSet", "fairlead"]["spec"]["template"]
    return template


def test_the_pods_are_confined_and_keep_nothing() -> None:
    spec = pod()["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    # The user of the image.
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in (*spec["initContainers"], *spec["containers"]):
        confined = container["securityContext"]
        assert confined["readOnlyRootFilesystem"] is True
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["capabilities"] == {"drop": ["ALL"]}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in spec["volumes"]}
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds == {"emptyDir", "secret"}


def test_the_pods_get_their_secrets_from_those_that_the_page_makes() -> None:
    page = (_CHECKOUT / "docs/containers.md").read_text()
    made = set(re.findall(r"kubectl create secret generic (\S+)", page))
    spec = pod()["spec"]
    mounted = {one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one}
    (container,) = spec["containers"]
    given = {one["secretRef"]["name"] for one in container["envFrom"]}
    assert mounted | given == made
    assert [one["name"] for one in container["env"]] == ["POD_NAME"]
    assert all(one["secret"]["defaultMode"] == 0o440 for one in spec["volumes"] if "secret" in one)


def test_the_keys_of_a_pod_are_private_files(tmp_path: Path) -> None:
    """Kubernetes mounts a secret as links, which the group may read."""
    (init,) = pod()["spec"]["initContainers"]
    keys, data, real = tmp_path / "keys", tmp_path / "data", tmp_path / "keys/..data"
    for folder in (keys, data, real):
        folder.mkdir()
    for name in ("id_ed25519", "secrets.key"):
        (real / name).write_text(name)
        (real / name).chmod(0o440)
        (keys / name).symlink_to(f"..data/{name}")
    command = init["command"][-1].replace("/run/keys/", f"{keys}/").replace("/data/;", f"{data}/;")
    subprocess.run([*init["command"][:-1], command], check=True)
    assert {path.name: path.read_text() for path in data.iterdir()} == {
        "id_ed25519": "id_ed25519",
        "secrets.key": "secrets.key",
    }
    assert {stat.S_IMODE(path.lstat().st_mode) for path in data.iterdir()} == {0o600}


def test_the_pods_start_with_options_that_the_controller_knows() -> None:
    entry = re.search(r"^ENTRYPOINT (.+)$", _IMAGE, re.MULTILINE)
    assert entry is not None
    (container,) = pod()["spec"]["containers"]
    given = [argument.replace("$(POD_NAME)", "fairlead-0") for argument in container["args"]]
    _, bound, _ = app.parse_args(
        [*yaml.safe_load(entry[1])[2:], *given], print_error=False, exit_on_error=False
    )
    names = _MANIFESTS["StatefulSet", "fairlead"]["spec"]["serviceName"]
    assert bound.arguments["url"] == f"http://fairlead-0.{names}:8700"
    assert bound.arguments["database_file"] == Path("/run/database/url")
    assert str(bound.arguments["bucket"].bucket).startswith("s3://")


def test_services_and_probes_reach_the_port_that_the_controller_has() -> None:
    (container,) = pod()["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 8700}]
    assert container["readinessProbe"]["httpGet"] == {"path": "/v1/health", "port": "http"}
    for probe in ("livenessProbe", "startupProbe"):
        assert container[probe]["tcpSocket"] == {"port": "http"}
    labels = pod()["metadata"]["labels"]
    for name in ("fairlead", "fairlead-pods"):
        service = _MANIFESTS["Service", name]["spec"]
        assert service["selector"].items() <= labels.items()
        assert service["ports"] == [{"name": "http", "port": 8700, "targetPort": "http"}]
    assert _MANIFESTS["Service", "fairlead-pods"]["spec"]["publishNotReadyAddresses"] is True
    budget = _MANIFESTS["PodDisruptionBudget", "fairlead"]["spec"]
    assert budget["selector"] == _MANIFESTS["StatefulSet", "fairlead"]["spec"]["selector"]
