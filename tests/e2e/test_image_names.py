"""A submission refuses the image names that the engine refuses, and no others."""

from __future__ import annotations

import pytest

from tests.support.daemons import DaemonFailed
from tests.support.docker_daemon import DockerDaemon
from tests.unit.configuration.image_names import RIGHT, WRONG

pytestmark = pytest.mark.e2e

_NO_NAME = (
    "invalid reference format",
    "invalid checksum digest",
    "cannot specify 64-byte hexadecimal strings",
    "repository name must not be",
)


def is_a_name(dockerd: DockerDaemon, image: str, name: str) -> bool:
    """Whether the engine can read it; a name with a digest it gives to no image itself."""
    try:
        dockerd.docker("tag", image, name)
    except DaemonFailed as error:
        return not any(words in str(error) for words in _NO_NAME)
    return True


def test_the_engine_takes_and_refuses_the_same_names(
    dockerd: DockerDaemon, busybox_image: str
) -> None:
    wrong = [name for name, _ in WRONG]
    refused = [name for name in (*RIGHT, *wrong) if not is_a_name(dockerd, busybox_image, name)]
    assert refused == wrong
