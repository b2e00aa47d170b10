"""Whatever a file holds, its user reads a sentence, and no word of a library."""

from __future__ import annotations

import re
from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, to_run
from fairlead.configuration.runs.task import TASK
from fairlead.configuration.text.dstack import translated
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.source import SourceError, read

LIBRARY_WORDS = re.compile(
    r"\b(?:\w+Error|Traceback|NoneType|dict|tuple|msgspec|yaml\.|object of type|Struct|"
    r"unhashable|positional|Expected `|__\w+__)\b"
)
NAMES = {part for path in TASK.guide().allowed for part in path.split(".")} | {
    *("python", "docker", "nvcc", "spot_policy", "ports", "utilization_policy", "instances"),
    *("model", "replicas", "replica_groups", "rate_limits", "key", "gateway", "probes"),
    *("min", "max", "vendor", "arch", "hostname", "project"),
}
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["8GB..", "1..2", "nvidia:", "~", "a:b:c", ":", "..", "-1", "${X}", "1h", "0"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.text(max_size=8), st.sampled_from(sorted(NAMES))), inner, max_size=3
        ),
    ),
    max_leaves=6,
)


def run_of(data: object) -> str:
    """The sentence that the user reads; empty when the file is accepted."""
    try:
        filled = with_environment(data, {}, {})
        parsed = parse(filled)
        assert isinstance(filled, dict)
        to_run(parsed, filled, Defaults())
    except ConfigurationError as error:
        return str(error)
    return ""


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(NAMES)), VALUES, max_size=4))
@example(fields={"ssh": []})
def test_data_of_any_shape_is_accepted_or_refused_in_a_sentence(fields: dict[str, Any]) -> None:
    said = run_of({"type": "task", "commands": ["true"], **fields})
    field = said.partition(": ")[0]
    assert not LIBRARY_WORDS.search(said.removeprefix(field)), said


@settings(max_examples=200)
@given(
    st.sampled_from(["task", "service", "dev-environment"]),
    st.sampled_from([{}, {"dialect": "dstack"}]),
    st.dictionaries(st.sampled_from(sorted(NAMES)), VALUES, max_size=4),
)
def test_what_was_translated_from_dstack_stays_as_it_is(
    kind: str, dialect: dict[str, Any], fields: dict[str, Any]
) -> None:
    once = translated({"type": kind, **dialect, **fields}).data
    assert repr(translated(once).data) == repr(once)


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(alphabet="abk:-[]{}&*!|>'\"#%@`,? \n\t0.~<=", max_size=60).map(str.encode),
        st.binary(max_size=40),
        VALUES.map(lambda value: yaml.safe_dump({"type": "task", "env": value}).encode()),
    )
)
@example(content=b"=")
def test_a_file_of_any_text_is_read_or_refused_in_a_sentence(content: bytes) -> None:
    try:
        document = read(content, name="job.yaml")
    except SourceError as error:
        said = str(error)
        assert said.startswith("job.yaml")
    else:
        said = run_of(document.data)
    assert not LIBRARY_WORDS.search(said), said
