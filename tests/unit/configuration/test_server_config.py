"""The controller's own file: what it changes, and how it is refused."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from controller import server_config
from controller.lifecycle.inventory import Budget, NodeFailure
from controller.lifecycle.model import Limits
from controller.server_config import Operating, OperatingFields
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.field import fields_of
from fairlead.configuration.plan import Defaults
from fairlead.configuration.text.source import SourceError

CHECKOUT = Path(__file__).parents[3]
WHOLE = """
limits:
  waiting_instance: 1m
  waiting_container: 3m
  waiting_runner: 2m
  reincarnation_timeout: 90s
  short_life: 5
  waits: [0s, 1s, 2s]
  no_capacity_wait: 3s
  jitter: 0
node_failure: {probe_every: 2s, unreachable_after: 8s, after: 40s}
defaults:
  image: busybox
  stop_duration: 10s
  max_duration: 1d
  scheduling_timeout: off
  priority: 70
cluster_networks: [10.1.0.0/16, 192.168.0.0/24]
"""


def test_all_of_it_counts(tmp_path: Path) -> None:
    file = tmp_path / "controller.yaml"
    file.write_text(WHOLE)
    limits = Limits(
        waiting_instance=60.0,
        waiting_container=180.0,
        waiting_runner=120.0,
        node_lost_after=40.0,
        reincarnation_timeout=90.0,
        short_life=5.0,
        waits=(0.0, 1.0, 2.0),
        no_capacity_wait=3.0,
        jitter=0.0,
    )
    defaults = Defaults(
        image="busybox", stop_duration=10.0, max_duration=86400.0, priority=70, limits=limits
    )
    networks = (IPv4Network("10.1.0.0/16"), IPv4Network("192.168.0.0/24"))
    failure = NodeFailure(probe_every=2.0, unreachable_after=8.0, lost_after=40.0)
    assert server_config.load(file) == Operating(
        defaults=defaults, node_failure=failure, cluster_networks=networks
    )


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.touch()
    assert server_config.load(file) == Operating()


def test_a_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "controller.yaml"
    file.write_text("limits:\n  waiting_runner: soon\n")
    with pytest.raises(SourceError) as refused:
        server_config.load(file)
    assert str(refused.value).startswith(f"{file}:2: limits.waiting_runner: 'soon' is not")


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ({"limit": {}}, "limit: is not a field; did you mean limits?"),
        ({"limits": {"waits": []}}, "limits.waits: is empty"),
        ({"limits": {"jitter": 2}}, "limits.jitter: is out of range"),
        ({"limits": {"waiting_instance": 0}}, "limits.waiting_instance: is 0"),
        ({"limits": {"waiting_container": 0}}, "limits.waiting_container: is 0"),
        ({"node_failure": {"after": 0}}, "node_failure.after: is 0"),
        ({"node_failure": {"unreachable_after": 0}}, "node_failure.unreachable_after: is 0"),
        ({"node_failure": {"probe_every": "0s"}}, "node_failure.probe_every: is 0 s"),
        (
            {"node_failure": {"after": "20s"}},
            "node_failure.after: is 20 s beside unreachable_after: 30 s",
        ),
        ({"node_failure": {"afer": 1}}, "node_failure.afer: is not a field; did you mean after?"),
        ({"cluster_networks": ["10.0.0.1/8"]}, "cluster_networks[0]: '10.0.0.1/8' is not an IPv4"),
        ({"cluster_networks": [10]}, "cluster_networks[0]: '10' is not an IPv4 network"),
        ({"defaults": {"priority": 101}}, "defaults.priority: is out of range"),
        ({"providers": {"a": {"type": "azure"}}}, "providers.a.type: 'azure' is no type of"),
        ({"providers": {"a": {}}}, "providers.a.type: is missing"),
        ({"providers": {"a": {"type": "exec"}}}, "providers.a.command: is missing"),
        (
            {"providers": {"a": {"type": "exec", "command": []}}},
            "providers.a.command: is empty",
        ),
        (
            {"providers": {"a": {"type": "exec", "command": ["rent"]}}},
            "providers.a.command: rent is not an absolute path",
        ),
        (
            {"providers": {"a": {"type": "exec", "command": ["/none"]}}},
            "providers.a.command: /none is no program that can be run",
        ),
        (
            {"providers": {"A b": {"type": "exec", "command": ["/bin/true"]}}},
            "providers.A b: is not a provider's name",
        ),
        ([], "is a mapping of fields to values, not a list"),
    ],
)
def test_a_wrong_value_is_named(written: object, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        server_config.parse(written)
    assert str(refused.value).startswith(complaint)


def test_every_field_is_explained_in_the_docs() -> None:
    page = (CHECKOUT / "docs/controller.md").read_text()
    assert [field for field in fields_of(OperatingFields) if f"`{field}`" not in page] == []


def test_the_budgets_of_users_and_of_all_are_read() -> None:
    found = server_config.parse(
        {"budget": {"per_month": 9, "each_user": {"per_hour": 2}, "users": {"ada": {}}}}
    ).spending
    assert found.together == Budget(per_month=9.0)
    assert found.of("bob") == Budget(per_hour=2.0)
    assert found.of("ada") == Budget()


def test_a_budget_that_contradicts_itself_is_refused_by_its_field() -> None:
    written = {"budget": {"users": {"ada": {"per_hour": 5, "per_month": 2}}}}
    with pytest.raises(ConfigurationError) as refused:
        server_config.parse(written)
    assert refused.value.field == "budget.users.ada.per_hour"
