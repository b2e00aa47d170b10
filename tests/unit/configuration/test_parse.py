"""A configuration is understood whole, or refused with one sentence about one field."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.types import DEFINITIONS
from fairlead.configuration.text.environment import with_environment

GUIDE = DEFINITIONS["task"].guide()
ALLOWED = GUIDE.allowed
TASK = {"type": "task", "commands": ["echo hi"]}


def refused(**fields: object) -> tuple[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        parse({**TASK, **fields})
    return caught.value.field, caught.value.sentence()


@pytest.mark.parametrize("data", [None, [], "text", 3, [TASK]])
def test_a_file_that_is_no_mapping_is_refused_as_a_whole(data: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(data)

    assert caught.value.field == ""
    assert "a mapping of fields to values" in str(caught.value)


def test_a_task_with_commands_is_enough() -> None:
    assert parse(TASK).commands == ("echo hi",)


def test_a_missing_type_is_named() -> None:
    with pytest.raises(ConfigurationError, match="is missing") as caught:
        parse({"commands": ["a"]})

    assert caught.value.field == "type"


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"comands": ["a"]}, "comands", "did you mean commands?"),
        ({"resources": {"memroy": "1GB"}}, "resources.memroy", "did you mean memory?"),
        ({"resources": {"gpu": {"cuont": 1}}}, "resources.gpu.cuont", "did you mean count?"),
        ({"retry": {"max_failure": 1}}, "retry.max_failure", "did you mean max_failures?"),
        ({"zzz": 1}, "zzz", "is not a field (allowed: one of "),
    ],
)
def test_an_unknown_field_is_named_with_the_one_that_was_meant(
    fields: dict[str, Any], field: str, sentence: str
) -> None:
    found_field, found = refused(**fields)

    assert found_field == field
    assert sentence in found


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"python": "pypy", "image": "i"}, "python", "'pypy' is not a version of Python"),
        ({"python": True}, "python", "is not a version of Python"),
        ({"setup": ["a"], "commands": [], "image": "i"}, "setup", "has no commands after it"),
        ({"setup": "a"}, "setup", "is a string, not a list"),
        (
            {"buckets": [{"url": "my-data", "path": "/d"}]},
            "buckets[0].url",
            "'my-data' is no bucket; write s3://BUCKET or s3://BUCKET/PREFIX",
        ),
        (
            {"buckets": [{"url": "s3://my-data", "path": "d"}]},
            "buckets[0].path",
            "'d' is not an absolute path",
        ),
        (
            {"buckets": [{"url": "s3://my-data", "path": "/d", "mode": "sync"}]},
            "buckets[0].mode",
            "read or write-back",
        ),
        (
            {"buckets": [{"url": "s3://my-data", "path": "/d", "endpoint": "storage"}]},
            "buckets[0].endpoint",
            "'storage' is no endpoint; write https://HOST[:PORT]",
        ),
        (
            {"buckets": [{"url": "s3://my-data", "path": "//"}]},
            "buckets[0].path",
            "is the whole file system of the container",
        ),
        (
            {
                "buckets": [
                    {"url": "s3://my-data", "path": "/d"},
                    {"url": "s3://other", "path": "/d/./e"},
                ]
            },
            "buckets[1].path",
            "shares files with another bucket's /d",
        ),
        ({"core_dumps": 99}, "core_dumps", "a whole number from 0 to 16"),
        ({"nvcc": True, "image": "i"}, "nvcc", "image chooses another (allowed: nvcc or image)"),
        ({"fleet": "a100s"}, "fleet", "is not a field; write fleets"),
        (
            {"profiles": ["a"]},
            "profiles",
            "is not a field: write the fields of the profile here",
        ),
        ({"port": 8080}, "port", "`fairlead port-forward RUN PORT`"),
        ({"memory": "1GB"}, "memory", "is not a field; write resources.memory"),
        ({"resources": {"ram": "1GB"}}, "resources.ram", "is not a field; write resources.memory"),
        ({"replicas": 2}, "replicas", "is for services (type: service); several jobs are nodes"),
    ],
)
def test_a_field_of_another_system_is_answered_with_what_to_write_here(
    fields: dict[str, Any], field: str, sentence: str
) -> None:
    found_field, found = refused(**fields)

    assert found_field == field
    assert sentence in found


def test_a_field_of_another_system_is_known_in_a_group_too() -> None:
    group = {"name": "a", "commands": ["x"], "port": 1}
    with pytest.raises(ConfigurationError, match="no port has to be opened") as caught:
        parse({"type": "task", "groups": [group]})
    assert caught.value.field == "groups[0].port"


@pytest.mark.parametrize("name", ["queue", "model", "auth", "profiles", "directory", "node_x"])
def test_nothing_is_suggested_that_is_hardly_alike(name: str) -> None:
    assert "did you mean" not in refused(**{name: 1})[1]


def test_hints_are_about_what_is_no_field_and_name_fields_that_are() -> None:
    assert not {*GUIDE.called, *GUIDE.hints} & ALLOWED.keys()
    assert not GUIDE.called.keys() & GUIDE.hints.keys()


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("image", 3, "image"),
        ("image", "", "image"),
        ("commands", "echo", "commands"),
        ("commands", [3], "commands[0]"),
        ("commands", ["a\0b"], "commands[0]"),
        ("name", "Train", "name"),
        ("name", "a" * 42, "name"),
        ("env", 3, "env"),
        ("env", {"A": True}, "env.A"),
        ("env", {"A": ["x"]}, "env.A"),
        ("env", {"1A": "x"}, "env"),
        ("env", ["A"], "env[0]"),
        ("env", ["A=1", "=2"], "env[1]"),
        ("env", ["A=1", 2], "env[1]"),
        ("env", {"A": "x\0"}, "env.A"),
        ("working_dir", 5, "working_dir"),
        ("outputs", ["a", ""], "outputs[1]"),
        ("outputs", ["../a"], "outputs[0]"),
        ("outputs", ["~/a"], "outputs[0]"),
        ("outputs", ["$HOME/a"], "outputs[0]"),
        ("outputs", ["a" * 1025], "outputs[0]"),
        ("outputs", "a", "outputs"),
        ("user", -1, "user"),
        ("user", "a b", "user"),
        ("user", True, "user"),
        ("nodes", 0, "nodes"),
        ("resources", [], "resources"),
        ("resources", {"cpu": 0}, "resources.cpu"),
        ("resources", {"cpu": math.inf}, "resources.cpu"),
        ("resources", {"cpu": "8..2"}, "resources.cpu"),
        ("resources", {"cpu": "..8"}, "resources.cpu"),
        ("resources", {"cpu": "2..x"}, "resources.cpu"),
        ("resources", {"memory": 8}, "resources.memory"),
        ("resources", {"memory": "8"}, "resources.memory"),
        ("resources", {"memory": "0GB"}, "resources.memory"),
        ("resources", {"memory": "9..1GB"}, "resources.memory"),
        ("resources", {"disk": "lots"}, "resources.disk"),
        ("resources", {"gpu": "A100:x"}, "resources.gpu"),
        ("resources", {"gpu": -1}, "resources.gpu"),
        ("resources", {"gpu": 1.5}, "resources.gpu"),
        ("resources", {"gpu": {"count": "many"}}, "resources.gpu.count"),
        ("resources", {"gpu": {"memory": "80"}}, "resources.gpu.memory"),
        ("resources", {"gpu": {"compute_capability": "new"}}, "resources.gpu.compute_capability"),
        ("resources", {"gpu": {"name": ["a;b"]}}, "resources.gpu.name"),
        ("max_duration", "long", "max_duration"),
        ("max_duration", True, "max_duration"),
        ("max_duration", -1, "max_duration"),
        ("stop_duration", "off", "stop_duration"),
        ("stop_signal", "SIGSTOP", "stop_signal"),
        ("retry", 3, "retry"),
        ("retry", {"on_events": ["eror"]}, "retry.on_events[0]"),
        ("retry", {"max_failures": -1}, "retry.max_failures"),
        ("retry", {"on_events": ["interruption"], "max_failures": 3}, "retry.max_failures"),
        ("retry", {"on_events": ["error"], "max_preemptions": 3}, "retry.max_preemptions"),
        ("priority", 101, "priority"),
        ("priority", "high", "priority"),
        ("band", "urgent", "band"),
        ("pull_policy", "sometimes", "pull_policy"),
        ("registry_auth", {"username": "u"}, "registry_auth.password"),
        ("registry_auth", "me:secret", "registry_auth"),
        ("scheduling_timeout", "soon", "scheduling_timeout"),
        ("stop_criteria", "first-done", "stop_criteria"),
        ("max_failed_jobs", -1, "max_failed_jobs"),
        ("fail_on_job_restart", "yes", "fail_on_job_restart"),
        ("shell", "", "shell"),
    ],
)
def test_a_wrong_value_is_refused_with_the_path_of_its_field(
    field: str, value: object, path: str
) -> None:
    assert refused(**{field: value})[0] == path


def test_a_wrong_value_is_refused_with_what_is_allowed() -> None:
    field, sentence = refused(resources={"memory": "12QB"})

    assert (field, sentence) == (
        "resources.memory",
        f"'12QB' is not a size (allowed: {ALLOWED['resources.memory']})",
    )


@pytest.mark.parametrize("text", ["a\0b", "half \ud800", math.nan, math.inf])
def test_a_string_that_no_other_part_could_carry_is_refused_in_any_field(text: object) -> None:
    assert refused(image=text)[0] == "image"
    assert refused(env={"A": text})[0] == "env.A"
    assert refused(commands=["a", text])[0] == "commands[1]"
    assert refused(unknown={"deep": [text]})[0] == "unknown.deep[0]"


def test_a_name_that_no_other_part_could_carry_is_refused_and_can_be_printed() -> None:
    assert refused(**{"a\ud800": 1})[0] == "a\\ud800"


def test_data_that_holds_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)

    assert "nested too deeply" in refused(env=endless)[1]


def test_commands_and_entrypoint_exclude_each_other() -> None:
    field, sentence = refused(entrypoint=["/app"])

    assert field == "entrypoint"
    assert "together with commands" in sentence


def test_without_an_image_something_must_be_given_to_run() -> None:
    with pytest.raises(ConfigurationError, match="nothing to run") as caught:
        parse({"type": "task"})

    assert caught.value.field == "commands"
    assert parse({"type": "task", "image": "busybox"}).commands == ()


def test_a_shell_without_commands_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no commands to run"):
        parse({"type": "task", "entrypoint": "a", "shell": "/bin/sh"})


@pytest.mark.parametrize(
    ("written", "argv"),
    [("python -c 'a b'", ("python", "-c", "a b")), (["a b", ""], ("a b", ""))],
)
def test_an_entrypoint_is_one_line_or_a_list(written: object, argv: tuple[str, ...]) -> None:
    assert parse({"type": "task", "entrypoint": written}).entrypoint == argv


@pytest.mark.parametrize("written", ["", [], "'open", [1], 3])
def test_an_entrypoint_that_names_no_program_is_refused(written: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse({"type": "task", "entrypoint": written})

    assert caught.value.field == "entrypoint"


def test_no_message_repeats_a_secret() -> None:
    secret = "hunter2"
    sentences = [
        refused(env={"A": [secret]}),
        refused(env=[secret]),
        refused(env=["1=" + secret]),
        refused(registry_auth={"username": secret, "password": [secret]}),
        refused(registry_auth=[secret]),
        refused(registry_auth=secret),
        refused(env=secret * 3),
    ]

    assert [sentence for sentence in sentences if secret in sentence[1]] == []


def test_a_representation_shows_no_secret() -> None:
    task = parse(
        {**TASK, "env": {"A": "hunter2"}, "registry_auth": {"username": "u", "password": "hunter2"}}
    )

    assert "hunter2" not in repr(task)


patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""The first value costs a second on a busy machine, which says nothing about the parser."""

_texts = st.text(st.characters(exclude_categories=()), max_size=20)
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | _texts
_plausible = st.sampled_from(["8GB", "2..", "A100:2", "2h", "off", "1.5", "..", "a=b", "task"])
_values = st.recursive(
    _scalars | _plausible,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=8) | st.sampled_from([path.rpartition(".")[2] for path in ALLOWED]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@patient
@given(st.dictionaries(st.sampled_from([p for p in ALLOWED if "." not in p]), _values, max_size=6))
def test_nothing_but_a_configuration_error_leaves_for_fields_of_any_content(
    fields: dict[str, object],
) -> None:
    assert is_refused_or_right({**TASK, **fields})


@patient
@given(_values | st.dictionaries(st.integers() | st.binary(max_size=4), _values, max_size=2))
def test_nothing_but_a_configuration_error_leaves_for_any_data(data: object) -> None:
    assert is_refused_or_right(data)


def is_refused_or_right(data: object) -> bool:
    try:
        return parse(data).type == "task"
    except ConfigurationError as error:
        return bool(error.message)


@pytest.mark.parametrize("entries", [["A=1", "A=2"], ["A", "A=2"]])
def test_a_variable_given_twice_is_refused_by_name_before_it_is_filled_in(
    entries: list[str],
) -> None:
    with pytest.raises(ConfigurationError, match="gives A a second time") as caught:
        with_environment({**TASK, "env": entries}, {"A": "1"}, {})

    assert caught.value.field == "env[1]"


def test_a_variable_given_twice_is_refused_by_name() -> None:
    assert refused(env=["A=1", "A=2"]) == ("env[1]", "gives A a second time")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"env": {"TOKEN": "${{ env.HF }}"}}, "env.TOKEN"),
        ({"env": {"TOKEN": "${{ secrets.HF }}${{ secrets.0 }}"}}, "env.TOKEN"),
        ({"commands": ["echo ${{run.nodes}}"]}, "commands[0]"),
        ({"image": "a:${{ env.TAG }}"}, "image"),
    ],
)
def test_an_expression_of_other_systems_is_never_taken_literally(
    fields: dict[str, Any], field: str
) -> None:
    found, sentence = refused(**fields)
    assert found == field
    assert sentence.startswith("holds ${{ ")
    assert "which is not resolved here" in sentence
    assert "(allowed: ${{ secrets." in sentence


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"commands": ["echo ${{ secrets.HF }}"]}, "commands[0]"),
        ({"image": "a:${{ secrets.TAG }}"}, "image"),
        ({"name": "${{ secrets.HF }}"}, "name"),
    ],
)
def test_a_stored_secret_is_refused_where_it_would_be_shown(
    fields: dict[str, Any], field: str
) -> None:
    found, sentence = refused(**fields)
    assert found == field
    assert sentence.startswith("cannot hold a stored secret")
    assert "(allowed: ${{ secrets.NAME }} in env" in sentence


@pytest.mark.parametrize(
    ("repo", "field"),
    [
        ({"token": "hunter2"}, "repos[0].token"),
        ({"private_key": "x${{ secrets.KEY }}"}, "repos[0].private_key"),
        ({"token": "${{ secrets.GIT }}", "token_env": "GIT"}, "repos[0].token"),
    ],
)
def test_credentials_of_a_repository_are_names_of_stored_secrets_alone(
    repo: dict[str, str], field: str
) -> None:
    found, sentence = refused(repos=[{"url": "https://git.example/a.git"} | repo])
    assert found == field
    assert "hunter2" not in sentence


def test_braces_of_a_shell_are_no_expression() -> None:
    commands = ["echo ${HOME} ${#a} {{x}}", "${A:-{}}"]
    assert parse({**TASK, "commands": commands}).commands == tuple(commands)
