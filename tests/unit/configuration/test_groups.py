"""Runs of several jobs as people write them, and what docs/rules.md 5 refuses at submit."""

from __future__ import annotations

from typing import Any

import pytest

from controller.lifecycle.model import (
    Amount,
    Constraint,
    Group,
    OnParentEnd,
    Operator,
    Resources,
    RetryEvent,
    RetryPolicy,
    StartupOrder,
)
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.masking import public
from fairlead.configuration.runs.plan import Defaults, Plan, to_run
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.source import read
from fairlead.wire.engine_abilities import EngineAbility

TASK: dict[str, object] = {"type": "task", "commands": ["echo hi"]}
GANG_RETRY = RetryPolicy(
    on_events=frozenset({RetryEvent.ERROR, RetryEvent.INTERRUPTION}), max_failures=10
)


def planned(**fields: Any) -> Plan:
    written = {**TASK, **fields}
    if "groups" in fields and "commands" not in fields:
        del written["commands"]
    return to_run(parse(written), written, Defaults())


def refused(**fields: Any) -> tuple[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        planned(**fields)
    return caught.value.field, caught.value.sentence()


def groups_of(plan: Plan) -> list[Group]:
    return [one.group for one in plan.groups]


def test_one_job_is_one_group_without_a_gang_on_a_shared_node() -> None:
    plan = planned()

    assert groups_of(plan) == [Group(name="main", share_nodes=True)]
    assert plan.specs[0].resources.whole_node is False


def test_several_nodes_are_a_gang_that_holds_whole_nodes() -> None:
    plan = planned(nodes=3)

    assert groups_of(plan) == [Group(name="main", nodes=3, gang_size=3)]
    assert plan.specs[0].resources == Resources(
        memory=2 << 30, whole_node=True, unset=tuple(Amount)
    )


def test_nodes_are_shared_on_demand_and_one_job_may_hold_its_own() -> None:
    assert planned(nodes=2, share_nodes=True).specs[0].resources.whole_node is False
    assert planned(share_nodes=False).specs[0].resources.whole_node is True


@pytest.mark.parametrize(
    ("gang", "size"), [(None, 4), (True, 4), (False, None), ({}, 4), ({"size": 3}, 3)]
)
def test_a_gang_has_the_size_that_was_asked_for(gang: object, size: int | None) -> None:
    fields = {} if gang is None else {"gang": gang}
    assert groups_of(planned(nodes=4, **fields))[0].gang_size == size


@pytest.mark.parametrize(
    ("fields", "retry"),
    [
        ({}, RetryPolicy()),
        ({"nodes": 2}, RetryPolicy()),
        ({"nodes": 2, "gang": False}, RetryPolicy()),
        ({"nodes": 2, "gang": True}, GANG_RETRY),
        ({"nodes": 2, "gang": {"size": 1}}, GANG_RETRY),
        ({"groups": [{"name": "a", "commands": ["a"], "gang": True}]}, GANG_RETRY),
        ({"nodes": 2, "gang": True, "retry": False}, RetryPolicy(on_events=frozenset())),
    ],
)
def test_an_explicit_gang_retries_errors_ten_times(
    fields: dict[str, Any], retry: RetryPolicy
) -> None:
    assert planned(**fields).policy.retry == retry


def test_a_group_says_what_is_its_own_and_has_the_rest_from_the_top() -> None:
    plan = planned(
        image="top",
        env={"A": 1, "B": 2},
        resources={"cpu": 2, "memory": "2GiB"},
        groups=[
            {"name": "ps", "commands": ["serve"]},
            {
                "name": "worker",
                "nodes": 2,
                "gang": False,
                "share_nodes": True,
                "image": "own",
                "commands": ["work"],
                "env": {"B": 3},
                "resources": {"cpu": 4},
                "fleets": "gpus",
            },
        ],
    )
    first, second = plan.specs

    assert groups_of(plan) == [
        Group(name="ps", nodes=1, gang_size=1),
        Group(name="worker", nodes=2, share_nodes=True),
    ]
    assert (first.image, first.commands, first.env) == ("top", ("serve",), {"A": "1", "B": "2"})
    assert (second.image, second.commands, second.env) == ("own", ("work",), {"A": "1", "B": "3"})
    assert first.resources == Resources(
        cpu=2.0,
        memory=2 << 30,
        whole_node=True,
        engine=(EngineAbility.IMAGES,),
        unset=(Amount.SHM_SIZE,),
    )
    assert second.resources == Resources(
        cpu=4.0, memory=2 << 30, engine=(EngineAbility.IMAGES,), unset=(Amount.SHM_SIZE,)
    )
    assert second.fleets == ("gpus",)


def test_groups_may_all_run_what_stands_at_the_top() -> None:
    plan = planned(commands=["same"], groups=[{"name": "a"}, {"name": "b"}])
    assert [spec.commands for spec in plan.specs] == [("same",), ("same",)]


def test_an_entrypoint_of_a_group_needs_no_shell_from_the_top() -> None:
    group = {"name": "a", "entrypoint": ["/app"]}
    plan = planned(shell="/bin/sh", groups=[group, {"name": "b", "commands": ["x"]}])
    assert [spec.shell for spec in plan.specs] == [None, "/bin/sh"]


@pytest.mark.parametrize("name", ["fail_on_job_restart", "restart_completed_jobs"])
def test_a_gang_is_refused_with_what_restarts_jobs_alone(name: str) -> None:
    assert refused(nodes=2, **{name: True})[0] == name
    assert getattr(planned(nodes=2, gang=False, **{name: True}).policy, name) is True


def test_a_gang_is_refused_with_max_failed_jobs() -> None:
    field, sentence = refused(nodes=2, max_failed_jobs=1)
    assert field == "max_failed_jobs"
    assert "gang: false" in sentence


def test_a_gang_may_say_how_long_it_takes_to_be_whole() -> None:
    limits = planned(nodes=2, reincarnation_timeout="45m").policy.limits
    assert limits.reincarnation_timeout == 45 * 60
    assert planned(nodes=2).policy.limits == Defaults().limits
    assert limits.waiting_runner == Defaults().limits.waiting_runner


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reincarnation_timeout": "5m"}, "there is none"),
        ({"reincarnation_timeout": "5m", "nodes": 2, "gang": False}, "there is none"),
        ({"reincarnation_timeout": 0, "nodes": 2}, "release a gang's allocations at once"),
        ({"reincarnation_timeout": "off", "nodes": 2}, "more than 0"),
    ],
)
def test_a_reincarnation_timeout_that_can_mean_nothing_is_refused(
    fields: dict[str, Any], words: str
) -> None:
    field, sentence = refused(**fields)
    assert field == "reincarnation_timeout"
    assert words in sentence


def test_the_group_that_is_a_gang_unasked_is_named_where_one_is_refused() -> None:
    server = {"name": "ps", "commands": ["x"]}
    workers = {"name": "w", "commands": ["x"], "nodes": 2, "gang": False}
    field, sentence = refused(max_failed_jobs=1, groups=[server, workers])
    assert field == "max_failed_jobs"
    assert "gang: false in group ps" in sentence


def test_an_operator_is_named_as_it_is_written() -> None:
    assert "EQ needs one value" in refused(constraints=["storage EQ"])[1]


def group(**fields: Any) -> dict[str, Any]:
    return {"groups": [{"name": "a", "commands": ["x"], **fields}]}


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"nodes": 0}, "nodes", "is out of range"),
        ({"nodes": 10_001}, "nodes", "is out of range"),
        ({"nodes": 2, "gang": {"size": 3}}, "gang.size", "more than the 2 nodes"),
        ({"gang": {"size": 0}}, "gang.size", "from 1 to nodes"),
        ({"gang": {"sise": 1}}, "gang.sise", "did you mean size?"),
        (group(nodes=2, gang={"size": 3}), "groups[0].gang.size", "more than the 2 nodes"),
        (group(nodes=0), "groups[0].nodes", "is out of range"),
        (group(name="A"), "groups[0].name", "'A' is not a name"),
        (group(comands=["x"]), "groups[0].comands", "did you mean commands?"),
        (group(priority=3), "groups[0].priority", "set it at the top level"),
        (group(resources={"memory": "1B"}), "groups[0].resources.memory", "less than the 48MiB"),
        (group(resources={"memroy": 1}), "groups[0].resources.memroy", "did you mean memory?"),
        (group(resources={"gpu": {"count": "x"}}), "groups[0].resources.gpu.count", "not a whole"),
        (group(env={"1": "x"}), "groups[0].env", "can't be a variable's name"),
        (group(entrypoint="x"), "groups[0].entrypoint", "together with commands"),
        ({"groups": [{"name": "a"}]}, "groups[0].commands", "is missing"),
        ({"groups": []}, "groups", "is empty"),
        ({"groups": "a"}, "groups", "not a list of groups"),
        ({"groups": [3]}, "groups[0]", "not a mapping"),
        ({**group(), "nodes": 2}, "nodes", "together with groups"),
        ({**group(), "gang": False}, "gang", "together with groups"),
        ({**group(), "commands": ["y"]}, "commands", "at the top level and in a group"),
        (
            {"groups": [{"name": "a", "commands": ["x"]}, {"name": "a", "commands": ["x"]}]},
            "groups[1].name",
            "the name of another group",
        ),
        (
            {"groups": [{"name": n, "commands": ["x"], "nodes": 6000} for n in "ab"]},
            "groups",
            "too many nodes",
        ),
    ],
)
def test_an_impossible_group_is_refused_with_its_field(
    fields: dict[str, Any], field: str, sentence: str
) -> None:
    found, said = refused(**fields)
    assert found == field
    assert sentence in said


@pytest.mark.parametrize(
    ("written", "constraint"),
    [
        ("zone EQ a", Constraint(attribute="zone", operator=Operator.EQ, values=("a",))),
        ("zone ne a b", Constraint(attribute="zone", operator=Operator.NE, values=("a b",))),
        ("rack EXISTS", Constraint(attribute="rack", operator=Operator.EXISTS)),
        ("rack NOT_EXISTS", Constraint(attribute="rack", operator=Operator.NOT_EXISTS)),
        ("zone IN a, b", Constraint(attribute="zone", operator=Operator.IN, values=("a", "b"))),
        (
            {"attribute": "cpu", "operator": "GE", "value": 8, "required": False},
            Constraint(attribute="cpu", operator=Operator.GE, values=("8",), required=False),
        ),
        (
            {"attribute": "zone", "operator": "IN", "values": ["a", 1]},
            Constraint(attribute="zone", operator=Operator.IN, values=("a", "1")),
        ),
    ],
)
def test_a_constraint_is_written_in_one_line_or_in_full(
    written: object, constraint: Constraint
) -> None:
    assert planned(constraints=[written]).specs[0].constraints == (constraint,)


@pytest.mark.parametrize("operator", list(Operator))
def test_every_operator_can_be_written(operator: Operator) -> None:
    alone = operator in (Operator.EXISTS, Operator.NOT_EXISTS)
    text = f"a {operator}" if alone else f"a {operator} 1"
    assert planned(constraints=[text]).specs[0].constraints[0].operator is operator


@pytest.mark.parametrize(
    "written",
    [
        "zone",
        "zone IS a",
        "zone EQ",
        "zone EXISTS a",
        "zone IN ,",
        "! EQ a",
        3,
        {"attribute": "zone", "operator": "EQ", "values": ["a", "b"]},
        {"attribute": "zone", "operator": "EQ", "value": "a", "values": ["a"]},
    ],
)
def test_a_constraint_that_says_nothing_is_refused(written: object) -> None:
    assert refused(constraints=[written])[0] == "constraints[0]"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("memory GE 8GB", "8000000000"),
        ("gpu.memory GT 79GiB", str(79 << 30)),
        ("disk LT 1000", "1000"),
        ("size GE 8GB", "8GB"),
    ],
)
def test_attributes_that_nodes_count_in_bytes_are_compared_with_sizes(
    written: str, value: str
) -> None:
    assert planned(constraints=[written]).specs[0].constraints[0].values == (value,)


def test_a_size_that_is_none_is_refused() -> None:
    assert refused(constraints=["memory GE lots"])[0] == "constraints[0]"


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ({"attribute": "zone", "operator": "IS", "value": "a"}, "operator"),
        ({"attribute": "zone", "operator": "EQ", "valu": "a"}, "valu"),
        ({"operator": "EQ", "value": "a"}, "attribute"),
    ],
)
def test_a_wrong_field_of_a_constraint_is_named_with_the_constraints_number(
    written: object, field: str
) -> None:
    group = {"name": "a", "constraints": ["zone EXISTS", written]}
    assert refused(constraints=["zone EXISTS", written])[0] == f"constraints[1].{field}"
    assert refused(groups=[group])[0] == f"groups[0].constraints[1].{field}"


@pytest.mark.parametrize(
    ("written", "expressions"),
    [
        ("0 8 * * *", ("0 8 * * *",)),
        (["0 8 * * 1-5", "30  12 * * *"], ("0 8 * * 1-5", "30 12 * * *")),
        ({"cron": "@hourly"}, None),
        ({"cron": "*/5 * * * *"}, ("*/5 * * * *",)),
    ],
)
def test_a_schedule_is_one_expression_or_several(
    written: object, expressions: tuple[str, ...] | None
) -> None:
    if expressions is None:
        assert refused(schedule=written)[0] == "schedule"
    else:
        assert planned(schedule=written).policy.schedule == expressions


@pytest.mark.parametrize("bad", ["0 25 * * *", "soon", "", "0 0 30 2 *", "0 0 8 * * *"])
def test_a_bad_cron_expression_is_named(bad: str) -> None:
    field, sentence = refused(schedule=["0 8 * * *", bad])
    assert field == "schedule"
    assert repr(bad) in sentence


def test_the_rest_of_a_runs_policy_arrives() -> None:
    policy = planned(
        nodes=2,
        placement="cluster",
        startup_order="master-first",
        on_parent_end="keep",
    ).policy
    assert policy.same_placement
    assert policy.startup_order is StartupOrder.MASTER_FIRST
    assert policy.on_parent_end is OnParentEnd.KEEP


def test_monitoring_by_rank_holds_for_all_groups() -> None:
    plan = planned(commands=["x"], monitoring="by-rank", groups=[{"name": "a"}, {"name": "b"}])
    assert [one.monitoring_by_rank for one in groups_of(plan)] == [True, True]


def test_secrets_in_a_groups_env_are_in_nothing_that_is_shown() -> None:
    shown = public({"groups": [{"name": "a", "env": {"PASS": "hunter2"}}, "hunter"]})
    assert shown == {"groups": [{"name": "a", "env": {"PASS": "***"}}, "hunter"]}


def test_the_submitting_environment_fills_a_groups_env_and_overrides_it() -> None:
    data = {"type": "task", "groups": [{"name": "a", "env": ["TOKEN", "X=1"]}]}
    filled = with_environment(data, {"TOKEN": "t"}, {"X": "2"})
    assert filled == {
        "type": "task",
        "env": {"X": "2"},
        "groups": [{"name": "a", "env": {"TOKEN": "t"}}],
    }
    with pytest.raises(ConfigurationError) as caught:
        with_environment(data, {}, {})
    assert caught.value.field == "groups[0].env[0]"


def test_a_version_in_a_groups_env_stays_the_text_that_was_written() -> None:
    content = b"groups:\n- name: a\n  env: {PY: 3.10}\n"
    assert read(content, name="x").data == {"groups": [{"name": "a", "env": {"PY": "3.10"}}]}


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("keep", None), ("stop", 300.0), ({"stop_after": "10m"}, 600.0)],
)
def test_a_job_may_be_stopped_when_its_node_hears_of_no_controller(
    written: object, seconds: float | None
) -> None:
    assert planned(on_disconnect=written).specs[0].stop_when_unheard == seconds


def test_a_wish_for_silence_that_is_not_known_is_refused() -> None:
    assert refused(on_disconnect="later")[0] == "on_disconnect"
