"""The files of a task's folder through which shim and runner work together.

The shim makes the folder and writes `image.json` and `stop.json`; the runner writes its logs and
its exit record. The job may change any of them, so what is read there is a claim.
"""

from __future__ import annotations

import msgspec

RUNNER_SOCKET_NAME = "runner.sock"
EXIT_RECORD_NAME = "exit.json"
IMAGE_CONFIG_NAME = "image.json"
STOP_ORDER_NAME = "stop.json"
LOGS_FOLDER_NAME = "logs"


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`image.json`: what the image itself would have run. An empty or missing file means all
    defaults."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    user: str = ""
    working_dir: str = ""


class StopOrder(msgspec.Struct, frozen=True, kw_only=True):
    """`stop.json`, written before SIGTERM by who stops the container, so that
    the job ends in time for its exit record. Without it the job has no limit but the container's
    end."""

    kill_at: float
    """When what is left of the job is killed."""
