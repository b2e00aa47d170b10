"""A PostgreSQL server of the tests' own: Debian's programs, a socket in a folder, no network."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.support.certificates import Authority
from tests.support.daemons import Daemon

HOST = "database.example"
"""The name in the certificate of a server that speaks TLS."""
SERVER_USER = "postgres"
"""The server refuses to run as root; Debian's package makes this user."""


class PostgresqlServer:
    """`folder` must be short and reachable by its user. Durability is off: nothing here crashes
    the machine. `address`: an IPv4 address of this machine at which it listens too, for anyone.
    `tls`: the authority of its certificate, for `HOST`; then it takes nobody there without TLS."""

    def __init__(self, folder: Path, address: str = "", tls: Authority | None = None) -> None:
        folder.mkdir()
        shutil.chown(folder, SERVER_USER, SERVER_USER)
        self.folder = folder
        self._address = address
        self._tls = tls
        self._databases = 0
        argv = [_program("postgres"), "-D", str(folder / "data"), "-k", str(folder)]
        settings = [f"listen_addresses={address}", "fsync=off", "logging_collector=off"]
        if tls is not None:
            key, certificate = folder / "key.pem", folder / "certificate.pem"
            tls.issue(certificate, key, HOST)
            # The server refuses a key that others can read.
            key.chmod(0o600)
            for file in (key, certificate):
                shutil.chown(file, SERVER_USER, SERVER_USER)
            settings += ["ssl=on", f"ssl_cert_file={certificate}", f"ssl_key_file={key}"]
        argv += [part for setting in settings for part in ("-c", setting)]
        log = folder / "server.log"
        self.daemon = Daemon([*_AS_ITS_USER, *argv], log, outlasts_tests=True)

    def start(self) -> None:
        if not (self.folder / "data").exists():
            self._run("initdb", "-D", str(self.folder / "data"), "-A", "trust", "-U", "fairlead")
            if self._address:
                with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
                    kind = "host" if self._tls is None else "hostssl"
                    rules.write(f"{kind} all all 0.0.0.0/0 trust\n")
        self.daemon.spawn()
        self.daemon.wait_ready(lambda: self.is_ready)

    def begin_as_standby_of(self, primary: PostgresqlServer) -> None:
        """Copy the other server, and follow it from now on; instead of the first `start`."""
        self._run(
            *("pg_basebackup", "-h", str(primary.folder), "-U", "fairlead"),
            *("-D", str(self.folder / "data"), "-R", "-X", "stream", "-c", "fast"),
        )
        self.start()

    def promote(self) -> None:
        """Let this standby take the place of its primary, which is gone."""
        self._run("pg_ctl", "promote", "-w", "-D", str(self.folder / "data"))

    def stop(self) -> None:
        """Connections are cut."""
        # SIGTERM would wait until all clients have left.
        self.daemon.signal(signal.SIGINT)
        self.daemon.wait()

    def new_database(self) -> str:
        """Its URL."""
        self._databases += 1
        name = f"test{self._databases}"
        self.sql("postgres", f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str) -> str:
        if self._tls is not None:
            where = f"host={HOST}&hostaddr={self._address}"
            trust = f"sslmode=verify-full&sslrootcert={self._tls.file}"
            return f"postgresql://fairlead@/{database}?{where}&{trust}"
        if self._address:
            return f"postgresql://fairlead@{self._address}/{database}"
        return f"postgresql://fairlead@/{database}?host={self.folder}"

    def sql(self, database: str, statement: str) -> str:
        return self._run(
            "psql", "-h", str(self.folder), "-U", "fairlead", "-Atc", statement, database
        )

    def cut_connections(self, database: str) -> None:
        self.sql(
            "postgres",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{database}' AND pid <> pg_backend_pid()",
        )

    def dump(self, database: str) -> str:
        return self._run("pg_dump", "-h", str(self.folder), "-U", "fairlead", database)

    @property
    def is_ready(self) -> bool:
        ready = subprocess.run(
            [_program("pg_isready"), "-q", "-h", str(self.folder)], cwd="/", check=False
        )
        return ready.returncode == 0

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [*_AS_ITS_USER, _program(program), *arguments],
            # Its user may not enter the folder in which the tests run.
            cwd="/",
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, f"{program}: {done.stderr.decode()}"
        return done.stdout.decode().strip()


_AS_ITS_USER = ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--clear-groups"]


def _program(name: str) -> str:
    """Debian keeps them out of PATH, by version."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}")) or [shutil.which(name) or ""]
    assert os.access(found[-1], os.X_OK), f"{name} is missing: apt-get install postgresql"
    return found[-1]
