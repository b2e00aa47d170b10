"""`--override FIELD=VALUE` changes one field of a configuration."""

from __future__ import annotations

import pytest

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.text.overrides import overridden

TASK = {"type": "task", "env": {"LR": "0.3"}, "commands": ["a", "b"], "resources": {"cpu": 2}}


@pytest.mark.parametrize(
    ("written", "field", "expected"),
    [
        ("env.LR=0.1", "env", {"LR": "0.1"}),
        ("env.SEED=7", "env", {"LR": "0.3", "SEED": "7"}),
        ("env.EMPTY=", "env", {"LR": "0.3", "EMPTY": ""}),
        ("resources.gpu=H100:2", "resources", {"cpu": 2, "gpu": "H100:2"}),
        ("resources.cpu=4", "resources", {"cpu": 4}),
        ("commands[1]=c d", "commands", ["a", "c d"]),
        ("commands=[x, y]", "commands", ["x", "y"]),
        ("retry.max_failures=3", "retry", {"max_failures": 3}),
        ("begin=2026-12-01T08:00Z", "begin", "2026-12-01T08:00Z"),
    ],
)
def test_a_field_gets_the_value(written: str, field: str, expected: object) -> None:
    changed = overridden(TASK, [written])
    assert isinstance(changed, dict)
    assert changed[field] == expected
    assert {**changed, field: None} == {**TASK, field: None}


def test_an_empty_value_takes_the_field_out() -> None:
    assert overridden({"name": "x", "type": "task"}, ["name="]) == {"type": "task"}


def test_variables_may_be_a_list() -> None:
    data = {"env": ["LR=0.3", "A=b"]}
    assert overridden(data, ["env.LR=0.1"]) == {"env": ["A=b", "LR=0.1"]}


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("env.LR", "not FIELD=VALUE"),
        ("=3", "not FIELD=VALUE"),
        ("commands[7]=x", r"no entry \[7\]"),
        ("type.x=1", "no field x"),
        ("resources.cpu=[1", "not YAML"),
    ],
)
def test_what_names_no_field_is_refused(written: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        overridden(TASK, [written])
