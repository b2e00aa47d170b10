"""An error in a file says in which line it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.text.environment import with_environment
from fairlead.configuration.text.source import MAX_BYTES, Document, SourceError, load, read

TASK = """\
type: task
commands:
  - echo one
  - echo two
resources:
  cpu: 2
  memory: 12QB
"""


patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def document(text: str) -> Document:
    return read(text.encode(), name="job.yaml")


def problem(text: str) -> str:
    with pytest.raises(SourceError) as caught:
        document(text)
    return str(caught.value)


def explained(text: str) -> str:
    found = document(text)
    with pytest.raises(ConfigurationError) as caught:
        parse(found.data)
    return found.explain(caught.value)


def test_an_error_names_file_line_field_and_what_is_allowed() -> None:
    assert explained(TASK) == (
        "job.yaml:7: resources.memory: '12QB' is not a size "
        "(allowed: a size with a unit, such as 512MB, 8GB, 1.5TB or 16GiB, at least 48MiB)"
    )


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("type: task\n\n# c\ncomands: [a]\n", "job.yaml:4: comands: "),
        ("type: task\ncommands:\n- a\n- 3\n", "job.yaml:4: commands[1]: "),
        (
            "type: task\ncommands: [a]\nregistry_auth:\n  username: u\n",
            "job.yaml:3: registry_auth.",
        ),
        ("type: task\ncommands: [a]\nenv:\n  A: x\n  B: [y]\n", "job.yaml:5: env.B: "),
        ("image: x\ncommands: [a]\n", "job.yaml:1: type: is missing"),
        ("type: task\ncommands: [a]\nretry:\n  on_events:\n  - eror\n", "job.yaml:5: retry.on_"),
        ("- a\n", "job.yaml:1: a configuration is a mapping"),
        ("", "job.yaml: is empty; a configuration is a mapping"),
    ],
)
def test_the_line_is_that_of_the_field_or_of_what_holds_it(text: str, start: str) -> None:
    assert explained(text).startswith(start)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("type: task\ntype: task\n", "job.yaml:2: type: is given twice, first in line 1"),
        ("a: {b: 1,\n b: 2}", "job.yaml:2: a.b: is given twice, first in line 1"),
        ("type: [\n", "job.yaml:2: is not valid YAML: [ or { is not closed"),
        ("a: 1\n\tb: 2\n", "job.yaml:2: is not valid YAML: a tab indents this line"),
        ("a: 1\n---\nb: 2\n", "job.yaml:2: begins a second document (---)"),
        ("a: !!python/name:os.system x\n", "job.yaml:1: a: has the tag"),
        ("a: !mine {b: c}\n", "job.yaml:1: a: has the tag '!mine'"),
        ("a: !!binary aGk=\n", "job.yaml:1: a: has the tag"),
        ("a: &x {b: c}\nd:\n  <<: *x\n", "job.yaml:3: d: merge keys (<<) are not supported"),
        ("? [a]\n: b\n", "job.yaml:1: the name of a field must be a string"),
        ("a: &a [*a]\n", "job.yaml:1: a[0]: is an alias (*) of what it is in"),
        ("a: *nobody\n", "job.yaml:1: is not valid YAML: a value that begins with *"),
        ("[" * 5000, "nested too deeply"),
        ('a: !!int ""\n', "job.yaml:1: a: is not a value that can be read; quote it"),
        ('a: !!float "-"\n', "job.yaml:1: a: is not a value that can be read; quote it"),
        ("{" * 5000, "nested too deeply"),
        (f"a: 0x{'f' * 6000}\n", "job.yaml:1: a: is not a value that can be read; quote it"),
        (f"a: {'9' * 6000}\n", "job.yaml:1: a: is not a value that can be read; quote it"),
        ("a: \x01\n", "job.yaml:1: contains a character that YAML does not allow (#x0001)"),
        ("a: " + "x" * MAX_BYTES, "job.yaml: is larger than 256 KiB"),
    ],
)
def test_a_file_that_is_no_plain_yaml_is_refused_with_one_sentence(
    text: str, sentence: str
) -> None:
    assert sentence in problem(text)


def test_aliases_that_multiply_are_refused_before_they_do() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]

    assert "more than" in problem("\n".join(lines))


@pytest.mark.parametrize(
    "text",
    [
        f"a: &a [{'1, ' * 100}]\n? {'n' * 10_000}\n: [{'*a, ' * 100}]\n",
        f"a: &a {'n' * 10_000}\nb: [{'*a, ' * 1000}]\n",
    ],
)
def test_long_text_that_aliases_repeat_is_refused(text: str) -> None:
    assert problem(text) == "job.yaml:1: aliases (*) make too much of this file"


def test_a_bracket_that_is_too_deep_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[int] = []
    stale = yaml.SafeLoader.stale_possible_simple_keys

    def counted(loader: yaml.SafeLoader) -> None:
        levels.append(loader.flow_level)
        stale(loader)

    monkeypatch.setattr(yaml.SafeLoader, "stale_possible_simple_keys", counted)
    assert "nested too deeply" in problem("{" * 5000)
    assert max(levels) < 100


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(SourceError, match=r"job.yaml:2: is not UTF-8"):
        read(b"type: task\nname: \xff\n", name="job.yaml")


def test_values_are_what_json_can_say() -> None:
    text = (
        "a: yes\nb: off\nc: 1_000\nd: 2.5\ne: ~\nf: 2024-01-31\ng: 12:30\nh: 12:30.5\ni: '1'\n3: x"
    )

    assert document(text).data == {
        "a": True,
        "b": False,
        "c": 1000,
        "d": 2.5,
        "e": None,
        "f": "2024-01-31",
        "g": "12:30",
        "h": "12:30.5",
        "i": "1",
        "3": "x",
    }


def test_a_variables_number_is_the_text_that_was_written() -> None:
    text = "env: {VERSION: 1.10, ZIP: 007, MASK: 0x1F, BIG: 1_000, RATE: 1e-3}"

    assert document(text).data == {
        "env": {"VERSION": "1.10", "ZIP": "007", "MASK": "0x1F", "BIG": "1_000", "RATE": "1e-3"}
    }


def test_an_alias_is_the_value_that_it_names() -> None:
    assert document("a: &x [1]\nb: *x\n").data == {"a": [1], "b": [1]}


def test_a_file_is_loaded_under_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(TASK)

    assert load(path).name == str(path)


def test_a_file_that_can_not_be_read_is_said_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.yaml: can't be read: No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(SourceError, match="can't be read: Is a directory"):
        load(tmp_path)


@patient
@given(st.text(alphabet="ab:-&*[]{}!<>'\"\n\t #?|,0", max_size=40) | st.text(max_size=40))
def test_any_text_is_read_or_refused_with_the_files_name(text: str) -> None:
    try:
        said = read(text.encode("utf-8", "surrogatepass"), name="job.yaml").name + ":"
    except SourceError as error:
        said = str(error)

    assert said.startswith("job.yaml:")


@patient
@given(st.text(max_size=30))
def test_the_line_of_any_field_can_be_asked_for(field: str) -> None:
    assert document(TASK).line_of(field) in range(1, 8)


def test_variables_without_a_value_come_from_the_environment() -> None:
    data = with_environment({"env": ["A", "B=2"]}, {"A": "1"}, {})

    assert data == {"env": {"A": "1", "B": "2"}}


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'A' is not set in your environment") as caught:
        with_environment({"env": ["B=2", "A"]}, {}, {})

    assert caught.value.field == "env[1]"


@pytest.mark.parametrize("env", [{"A": "1", "B": "2"}, ["A=1", "B=2"]])
def test_overrides_win_over_the_file(env: object) -> None:
    data = with_environment({"env": env}, {}, {"B": "3", "C": "4"})

    assert data == {"env": {"A": "1", "B": "3", "C": "4"}}


def test_overrides_work_without_an_env_in_the_file() -> None:
    assert with_environment({}, {}, {"A": "1"}) == {"env": {"A": "1"}}


def test_credentials_can_come_from_the_environment() -> None:
    data = {"registry_auth": {"username": "me", "password": "${PASS}"}}

    assert with_environment(data, {"PASS": "p"}, {}) == {
        "registry_auth": {"username": "me", "password": "p"}
    }
    with pytest.raises(ConfigurationError, match="'PASS' is not set") as caught:
        with_environment(data, {}, {})
    assert caught.value.field == "registry_auth.password"


@pytest.mark.parametrize("data", [None, [], {"env": 3}, {"env": [3]}, {"registry_auth": "x"}])
def test_data_of_a_wrong_shape_is_left_to_be_refused_later(data: object) -> None:
    assert with_environment(data, {}, {"A": "1"} if data is None else {}) == data
