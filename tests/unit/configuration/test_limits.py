"""A job that could never run is refused when it is submitted, by its field."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, Plan, to_run
from fairlead.wire.job import MAX_ARGUMENT, script


def submit(**fields: Any) -> Plan:
    written = {"type": "task", "commands": ["true"], **fields}
    return to_run(parse(written), written, Defaults())


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"on_disconnect": {"stop_after": "29s"}}, "on_disconnect.stop_after", "at least 30s"),
        ({"max_duration": 0}, "max_duration", "more than 0"),
        ({"max_duration": "0s"}, "max_duration", "more than 0"),
        ({"log_quota": "1KiB"}, "log_quota", "at least 1MiB"),
        ({"stop_duration": -5}, "stop_duration", "a duration such as"),
        ({"stop_duration": "-5s"}, "stop_duration", "a duration such as"),
        ({"resources": {"memory": "1KB"}}, "resources.memory", "at least 48MiB"),
        ({"resources": {"memory": "48MB"}}, "resources.memory", "at least 48MiB"),
        (
            {"resources": {"memory": "16MB"}},
            "resources.memory",
            "less than the 48MiB (50.4MB) that Fairlead's own processes need in the job's",
        ),
        (
            {"resources": {"memory": "1GiB", "shm_size": "2GiB"}},
            "resources.shm_size",
            "at most the job's memory",
        ),
        ({"secrets": {"PIN": "123"}}, "secrets.PIN", "4 bytes or more"),
        ({"secrets": {"PIN": ""}}, "secrets.PIN", "too short to be hidden in logs"),
        ({"secrets": {"BLANK": " " * 9}}, "secrets.BLANK", "not only blanks"),
        (
            {"resources": {"memory": "1GiB", "shm_size": "2GiB"}},
            "resources.shm_size",
            "resources.memory (1 GiB), as which it counts",
        ),
    ],
)
def test_a_request_that_could_never_run_is_refused_with_the_allowed_values(
    fields: dict[str, Any], field: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        submit(**fields)

    assert caught.value.field == field
    assert sentence in caught.value.sentence()


@pytest.mark.parametrize(
    "fields",
    [
        {"max_duration": "off"},
        {"stop_duration": 0},
        {"resources": {"memory": "48MiB", "shm_size": "48MiB"}},
        {"resources": {"shm_size": "64GiB"}},
        {"secrets": {"PIN": "1234", "WORD": "höh"}},
    ],
)
def test_a_value_on_the_limit_is_accepted(fields: dict[str, Any]) -> None:
    assert len(submit(**fields).specs) == 1


AROUND = len("echo") + len(script(["", ""]))


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("env.A", lambda size: {"env": {"A": "x" * (size - 2)}}),
        ("env.A", lambda size: {"env": {"A": "é" * ((size - 2) // 2)}}),
        ("secrets.S", lambda size: {"secrets": {"S": "x" * (size - 2)}}),
        ("commands", lambda size: {"commands": ["echo", "x" * (size - AROUND)]}),
        ("entrypoint[1]", lambda size: {"commands": [], "entrypoint": ["a", "x" * size]}),
    ],
)
def test_an_argument_that_linux_would_not_pass_on_is_refused(field: str, fields: Any) -> None:
    submit(**fields(MAX_ARGUMENT))
    with pytest.raises(ConfigurationError, match="131071 bytes") as caught:
        submit(**fields(MAX_ARGUMENT + 2))

    assert caught.value.field == field
    assert "xxx" not in str(caught.value)


def test_a_log_quota_is_checked_before_anything_is_sent() -> None:
    with pytest.raises(ConfigurationError):
        parse({"type": "task", "commands": ["ls"], "log_quota": "1KiB"})
