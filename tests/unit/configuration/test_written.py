"""A configuration as YAML for people."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairlead.configuration.text.written import as_yaml

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


def test_commands_of_several_lines_are_a_block() -> None:
    text = as_yaml({"type": "task", "commands": ["echo 1\nfor i in 1 2; do\n  echo $i\ndone\n"]})
    assert text == ("type: task\ncommands:\n- |\n  echo 1\n  for i in 1 2; do\n    echo $i\n  done")


@given(st.dictionaries(st.text(), VALUES))
def test_it_reads_back_as_the_same(configuration: dict[str, object]) -> None:
    assert yaml.safe_load(as_yaml(configuration)) == configuration
