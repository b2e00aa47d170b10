"""PgBouncer before a server of the tests' own: a socket in a folder, no network."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.daemons import Daemon
from tests.support.postgresql_server import SERVER_USER, PostgresqlServer

_CONFIGURATION = """\
[databases]
* = host={server} port=5432 user=fairlead
[pgbouncer]
listen_addr =
listen_port = 5432
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = {sessions}
ignore_startup_parameters = {ignored}
"""


class PgBouncer:
    """`mode`: session or transaction; `sessions`: how many it has at the server; `ignored`: the
    settings of a client that it drops instead of refusing the client."""

    def __init__(
        self,
        folder: Path,
        server: PostgresqlServer,
        mode: str,
        *,
        sessions: int = 20,
        ignored: str = "options",
    ) -> None:
        folder.mkdir()
        shutil.chown(folder, SERVER_USER, SERVER_USER)
        self._folder = folder
        self._server = server
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(
            _CONFIGURATION.format(
                server=server.folder, folder=folder, mode=mode, sessions=sessions, ignored=ignored
            )
        )
        # It refuses to run as root.
        argv = ["pgbouncer", "-u", SERVER_USER, str(configuration)]
        self.daemon = Daemon(argv, folder / "pgbouncer.log")

    def start(self) -> None:
        self.daemon.spawn()
        self.daemon.wait_ready((self._folder / ".s.PGSQL.5432").exists)

    def kill9(self) -> None:
        self.daemon.kill9()
        # It begins with no socket there.
        (self._folder / ".s.PGSQL.5432").unlink(missing_ok=True)

    def url_of(self, database_url: str) -> str:
        """Return the address, behind this pool, of a database of the server."""
        return database_url.replace(str(self._server.folder), str(self._folder))
