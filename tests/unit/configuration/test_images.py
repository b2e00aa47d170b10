"""An image's name that no engine takes is refused at submit, and says what is wrong about it."""

from __future__ import annotations

import pytest
from docker.auth import resolve_repository_name
from docker.utils import parse_repository_tag

from controller import server_config
from controller.commands.serve_options import parse_image
from fairlead.cli.errors import CliError
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, to_run
from fairlead.configuration.values.images import image_name
from tests.unit.configuration.image_names import NEWER, RIGHT, WRONG


@pytest.mark.parametrize("name", [*RIGHT, *NEWER])
def test_the_name_of_an_image_is_taken_as_it_is_written(name: str) -> None:
    written = {"type": "task", "image": name}
    (spec,) = to_run(parse({**written, "commands": ["x"]}), written, Defaults()).specs
    assert spec.image == name
    assert type(spec.image) is str
    repository, _ = parse_repository_tag(name)
    assert resolve_repository_name(repository)


@pytest.mark.parametrize(("name", "words"), WRONG)
def test_an_image_name_that_no_engine_takes_is_refused_with_its_fault(
    name: str, words: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse({"type": "task", "image": name, "commands": ["x"]})
    assert caught.value.field == "image"
    assert words in caught.value.sentence()
    assert "such as ubuntu:24.04" in caught.value.sentence()


def test_an_image_of_a_group_is_looked_at_too() -> None:
    groups = [{"name": "a", "image": "A b", "commands": ["x"]}]
    with pytest.raises(ConfigurationError, match="contains a blank") as caught:
        parse({"type": "task", "groups": groups})
    assert caught.value.field == "groups[0].image"


def test_an_operators_default_is_looked_at_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="has capital letters") as caught:
        server_config.parse({"defaults": {"image": "Ubuntu"}})
    assert caught.value.field == "defaults.image"
    assert parse_image("team/uv:{python}") == "team/uv:{python}"
    with pytest.raises(CliError, match="--default-image: 'Ubuntu' has capital letters"):
        parse_image("Ubuntu")
    assert server_config.parse({"defaults": {"image": "a:1"}}).defaults.image == "a:1"


def test_a_value_that_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="is not the name of an image"):
        image_name(3)
