"""Looks for a secret wherever a lab of tests may have left it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.support.lab import RunLab

MAX_READ = 64 << 20


def in_files(folder: Path, secret: str) -> Iterator[str]:
    """A file may be gone before it is read: its daemon writes a new one in its place."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if path.is_file() and not path.is_symlink():
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                    if secret.encode() in file.read(MAX_READ):
                        yield str(path)


def _in_command_lines(secret: str) -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found = secret.encode() in path.read_bytes()
        except OSError:
            continue
        if found:
            yield str(path)


def _in_answers(lab: RunLab, name: str, secret: str) -> Iterator[str]:
    questions = (
        ("inspect", name, "--json"),
        ("inspect", name),
        ("events", name, "--json"),
        ("events", "--json"),
        ("ps", "--all", "--json"),
        ("ps", "--all"),
        ("node", "list", "--json"),
    )
    for question in questions:
        answer = lab.cli(*question).succeeded()
        if secret in answer.output + answer.errors:
            yield " ".join(question)


def _in_docker(lab: RunLab, name: str, secret: str) -> Iterator[str]:
    if (container := lab.container(name)) and secret in lab.dockerd.docker("inspect", container):
        yield "docker inspect"


def _in_the_shims_answers(lab: RunLab, secret: str) -> Iterator[str]:
    paths = ("/v1/node", "/v1/node/metrics", "/metrics", "/v1/tasks", "/v1/allocations")
    for path in paths:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as shim, shim.makefile("rb") as file:
            shim.connect(str(lab.shim.socket))
            shim.sendall(f"GET {path} HTTP/1.0\r\nHost: shim\r\n\r\n".encode())
            answer = file.read()
        assert b" 200 OK" in answer.partition(b"\r\n")[0]
        if secret.encode() in answer:
            yield path


def leaks(lab: RunLab, name: str, secret: str) -> list[str]:
    """Return the files, logs, processes and answers that show the secret."""
    logs = (lab.shim.daemon.log, lab.controller.daemon.log)
    return [
        *in_files(lab.shim.data, secret),
        *(str(log) for log in logs if secret in log.read_text(errors="replace")),
        *_in_command_lines(secret),
        *_in_docker(lab, name, secret),
        *_in_answers(lab, name, secret),
        *_in_the_shims_answers(lab, secret),
    ]
