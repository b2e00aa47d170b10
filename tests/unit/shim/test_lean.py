"""The shim's command loads no TLS before the Docker client does."""

from __future__ import annotations

import subprocess
import sys


def said(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_machines_certificates_are_not_read() -> None:
    assert said("import shim.main, sys; print('ssl' in sys.modules)") == "False\n"


def test_the_docker_client_has_tls_all_the_same() -> None:
    program = "import shim.main, docker, ssl; from urllib3 import connection"
    assert said(f"{program}; print(connection.BaseSSLError is ssl.SSLError)") == "True\n"


def test_garbage_is_collected_once_all_is_loaded() -> None:
    assert said("import shim.main, gc; print(gc.isenabled(), gc.get_freeze_count() > 0)") == (
        "True True\n"
    )


def test_a_process_that_has_tls_already_is_left_as_it_is() -> None:
    program = "import ssl, gc, sys, shim.main; print(sys.modules['ssl'] is ssl)"
    assert said(f"{program}; print(gc.isenabled(), gc.get_freeze_count())") == "True\nTrue 0\n"
