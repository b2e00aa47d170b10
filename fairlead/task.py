"""A task as a Python object: the fields of the YAML by the same names, checked by the same code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from fairlead.configuration.text.source import Document, SourceError, read
from fairlead.errors import InvalidConfiguration
from fairlead.submission import completed, read_document

Mapped = Mapping[str, Any]


class TaskFields(TypedDict, total=False):
    """The fields of docs/configuration.md; values as in the YAML."""

    nodes: int
    gang: bool | Mapped
    share_nodes: bool
    image: str
    python: float | str
    nvcc: bool
    setup: Sequence[str]
    commands: Sequence[str]
    entrypoint: str | Sequence[str]
    shell: str
    env: Mapping[str, float | str] | Sequence[str]
    working_dir: str
    user: int | str
    resources: Mapped
    constraints: Sequence[str | Mapped]
    fleets: str | Sequence[str | Mapped] | Sequence[str]
    spot_policy: str
    max_price: float
    backends: Sequence[str]
    regions: Sequence[str]
    availability_zones: Sequence[str]
    instance_types: Sequence[str]
    reservation: str
    creation_policy: str
    idle_duration: bool | float | str
    volumes: Sequence[str | Mapped]
    name: str
    dialect: str
    on_parent_end: str
    on_disconnect: str | Mapped
    max_duration: bool | float | str
    stop_duration: float | str
    stop_signal: str
    signal: Mapped
    restart_exit_code: int
    log_quota: str
    fail_on_log_quota: bool
    retry: bool | Mapped
    priority: int
    band: str
    scheduling_timeout: bool | float | str
    pull_policy: str
    registry_auth: Mapped
    repos: Sequence[str | Mapped]
    files: Sequence[str | Mapped]
    secrets: Mapping[str, str] | Sequence[str]
    ports: Sequence[int | str]
    tty: bool
    env_style: Sequence[str]
    outputs: Sequence[str]
    core_dumps: bool | int
    buckets: Sequence[Mapped]
    ssh: bool | str
    privileged: bool
    cap_add: Sequence[str]
    cap_drop: Sequence[str]
    ulimits: Mapping[str, int | str]
    pids_limit: int
    read_only_root: bool
    groups: Sequence[Mapped]
    monitoring: str
    placement: str
    startup_order: str
    after: str | Mapped | Sequence[str | Mapped]
    outputs_from: str | Sequence[str]
    begin: float | str
    start_before: float | str
    on_time_limit: str
    schedule: str | Mapped | Sequence[str]
    sweep: Mapped
    reincarnation_timeout: float | str
    stop_criteria: str
    max_failed_jobs: int
    max_failed_attempts: int
    fail_on_job_restart: bool
    restart_completed_jobs: bool
    init: bool


class Task:
    """A task to submit.

        Task(commands=["python train.py"], resources={"gpu": "H100:1"}, files=["train.py"])

    Relative paths in `repos` and `files` are relative to the working folder of this process, or to
    the folder of the YAML file.
    """

    def __init__(self, **fields: Unpack[TaskFields]) -> None:
        self._document, self._base = _document(fields), Path.cwd()

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> Task:
        """Return the task with these fields, whatever they are: they are checked when it is
        used."""
        return cls._of(_document(fields), Path.cwd())

    @classmethod
    def load(cls, file: str | Path) -> Task:
        """Return the task of a YAML file. Raises InvalidConfiguration."""
        path = Path(file)
        return cls._of(read_document(path), path.resolve().parent)

    @classmethod
    def parse(cls, text: str) -> Task:
        """Return the task of this YAML. Raises InvalidConfiguration."""
        try:
            document = read(text.encode(), name="the YAML")
        except SourceError as error:
            raise InvalidConfiguration(str(error)) from None
        return cls._of(document, Path.cwd())

    @classmethod
    def _of(cls, document: Document, base: Path) -> Task:
        task = cls()
        task._document, task._base = document, base
        return task

    def with_sweep(self, sweep: Mapping[str, object]) -> Task:
        """Return the task with this `sweep`, instead of its own."""
        data = self._document.data
        if not isinstance(data, dict):
            return self
        swept = msgspec.structs.replace(self._document, data={**data, "sweep": sweep})
        return self._of(swept, self._base)

    @property
    def name(self) -> str:
        """The name of the configuration in errors: its file, or `Task`."""
        return self._document.name

    @property
    def base(self) -> Path:
        """The folder of its relative paths."""
        return self._base

    def configuration(
        self, env: Mapping[str, str] | None = None, environ: Mapping[str, str] = os.environ
    ) -> object:
        """Return the complete configuration: variables that it only names come from `environ`, and
        `env` overrides its own.

        Raises InvalidConfiguration with the field and what is allowed.
        """
        return completed(self._document, environ, env or {})

    def __repr__(self) -> str:
        return f"Task({self.name})"


def _document(fields: Mapping[str, object]) -> Document:
    try:
        data = msgspec.to_builtins({"type": "task", **fields}, enc_hook=os.fspath)
    except TypeError as error:
        raise InvalidConfiguration(
            f"Task: {error}; give strings, numbers, lists, mappings and paths"
        ) from None
    return Document(name="Task", data=data, lines={})
