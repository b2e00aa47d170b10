"""How a controller starts, and what it says when it cannot."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from controller.commands import serve
from controller.commands.serve import make_folder
from controller.commands.serve_options import read_config
from controller.daemon import serving
from controller.store.errors import LeaseLost, StoreError, StoreUnusable
from fairlead.cli.errors import EXIT_USAGE, CliError
from tests.unit.cli.conftest import Fairlead, Result
from tests.unit.cli.output import of


async def serve_in(folder: Path, start: Fairlead, *options: str, **env: str) -> Result:
    return await of(start, "controller", "--data", f"{folder}/c", *options, **env)


def test_a_mistake_in_the_controllers_file_names_file_line_and_field(tmp_path: Path) -> None:
    file = tmp_path / "controller.yaml"
    file.write_text("limits:\n  jitter: 7\n")
    with pytest.raises(CliError, match=r"--config .*/controller.yaml:2: limits.jitter: is out of"):
        read_config(file)


def test_a_controllers_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"--config .*/none.yaml: can't be read: No such file"):
        read_config(tmp_path / "none.yaml")


def test_a_data_folder_that_is_a_file_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for data in (file, file / "below"):
        with pytest.raises(CliError, match=r"--data .*/file.*: it, or a folder above") as caught:
            make_folder(data)
        assert caught.value.exit_status == EXIT_USAGE


async def test_a_level_that_is_not_known_is_refused_with_those_that_are(
    start: Fairlead, tmp_path: Path
) -> None:
    done = await serve_in(tmp_path, start, "--log-level", "loud")
    assert done.status == 2
    assert '"warning"' in done.err
    assert "should not have happened" not in done.err


async def test_a_level_from_the_environment_is_named_by_its_variable(
    start: Fairlead, tmp_path: Path
) -> None:
    done = await serve_in(tmp_path, start, FAIRLEAD_LOG_LEVEL="loud")
    assert done.status == 2
    assert "FAIRLEAD_LOG_LEVEL" in done.err
    assert '"warning"' in done.err


async def test_a_port_that_is_taken_is_told_in_a_few_words(start: Fairlead, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = await serve_in(tmp_path, start, "--listen", listen)
    assert (done.status, done.err) == (
        1,
        f"fairlead: cannot listen on {listen} (Address already in use); "
        "give another address with --listen HOST:PORT\n",
    )


@pytest.mark.parametrize(
    ("option", "form"),
    [
        ("--upload-limit", "a size with a unit"),
        ("--user-upload-limit", "a size with a unit"),
        ("--keep-runs", "30s"),
        ("--keep-logs", "30s"),
        ("--service-timeout", "30s"),
        ("--service-hold", "30s"),
        ("--service-body", "a size with a unit"),
    ],
)
async def test_a_wrong_size_or_duration_is_refused_with_its_form(
    start: Fairlead, tmp_path: Path, option: str, form: str
) -> None:
    done = await serve_in(tmp_path, start, option, "some")
    assert done.status == 2
    assert done.err.startswith(f"fairlead: {option}: 'some' is not a ")
    assert form in done.err


@pytest.mark.parametrize("trouble", [LeaseLost("taken over"), StoreUnusable("it is damaged")])
def test_a_database_that_ends_the_controller_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trouble: StoreError
) -> None:
    def fail(_: object) -> None:
        raise trouble

    monkeypatch.setattr(serving, "serve", lambda *_: None)
    monkeypatch.setattr(uvloop, "run", fail)
    monkeypatch.setattr(serve, "prepare_for_many_nodes", lambda: None)
    before = os.umask(0o022)
    try:
        with pytest.raises(CliError, match=str(trouble)):
            serve.controller(data=tmp_path / "c")
    finally:
        os.umask(before)


async def test_a_wrong_domain_of_services_is_refused_with_an_example(
    start: Fairlead, tmp_path: Path
) -> None:
    done = await serve_in(tmp_path, start, "--service-domain", "no domain")
    assert (done.status, done.err) == (
        2,
        "fairlead: --service-domain: 'no domain' is no domain, such as svc.example.com\n",
    )


async def test_half_of_a_certificate_is_a_usage_error(start: Fairlead, tmp_path: Path) -> None:
    done = await serve_in(tmp_path, start, "--tls-cert", f"{tmp_path}/x.pem")
    assert (done.status, done.err) == (
        2,
        "fairlead: --tls-cert and --tls-key belong together: give both\n",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--outputs-endpoint", "https://storage.example.com"),
            "--outputs-endpoint belongs to --outputs-bucket: give both",
        ),
        (
            ("--outputs-bucket", "kept"),
            "--outputs-bucket, --outputs-endpoint: 'kept' is no bucket; write s3://BUCKET or"
            " s3://BUCKET/PREFIX",
        ),
    ],
)
async def test_a_bucket_that_cannot_be_one_is_a_usage_error(
    start: Fairlead, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = await serve_in(tmp_path, start, *options)
    assert (done.status, done.err) == (2, f"fairlead: {message}\n")


async def test_a_certificate_that_is_not_there_is_named(start: Fairlead, tmp_path: Path) -> None:
    options = ("--tls-cert", f"{tmp_path}/x.pem", "--tls-key", f"{tmp_path}/x.key")
    done = await serve_in(tmp_path, start, *options)
    assert (done.status, done.err) == (
        1,
        f"fairlead: --tls-cert, --tls-key: {tmp_path}/x.pem: No such file or directory\n",
    )
    assert not (tmp_path / "c" / "controller.db").exists()


def test_a_controller_that_is_alone_loads_nothing_of_followers() -> None:
    code = (
        "import sys, controller.daemon.serving, controller.commands.serve; "
        "print(*(name for name in sys.modules if name.startswith(("
        "'controller.forwarding', 'controller.following', 'controller.relay', "
        "'controller.daemon.followers', 'controller.store.reading', 'psycopg'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
