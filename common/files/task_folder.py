"""The files of a task's folder through which shim and runner work together.

The shim makes the folder and writes `image.json`, `pythons.json` and `stop.json`; the runner writes
its logs and its exit record. The job may change any of them, so their content is only a claim.
"""

from __future__ import annotations

import msgspec

RUNNER_SOCKET_NAME = "runner.sock"
EXIT_RECORD_NAME = "exit.json"
IMAGE_CONFIG_NAME = "image.json"
STOP_ORDER_NAME = "stop.json"
PYTHONS_NAME = "pythons.json"
LOGS_FOLDER_NAME = "logs"
OUTPUT_FOLDER_NAME = "output"
"""The files that the job leaves here are kept beyond its end."""


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`image.json`: the image's own command and settings. An empty or missing file means all
    defaults."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    user: str = ""
    working_dir: str = ""


class Pythons(msgspec.Struct, frozen=True, kw_only=True):
    """`pythons.json`, for a job that asks for a version of Python: the folder with the node's
    interpreters, as the job sees it, and why the version is not among them."""

    folder: str = ""
    problem: str | None = None


class StopOrder(msgspec.Struct, frozen=True, kw_only=True):
    """`stop.json`, written before SIGTERM by the program that stops the container, so that the job
    ends in time for its exit record.

    Without it, only the container's end limits the job.
    """

    kill_at: float
    """The Unix time at which the rest of the job is killed."""
