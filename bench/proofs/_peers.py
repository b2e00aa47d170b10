"""What several controllers of one proof stand on: a PostgreSQL, a bucket, and a node of plain
processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.controllers import Controllers
from tests.support.object_storage import ObjectStorage, object_storage
from tests.support.postgresql_server import PostgresqlServer
from tests.support.processes import ShimProcess


@dataclass(frozen=True)
class Parts:
    """`database` is the URL of an empty one; the shim of `node` runs."""

    folder: Path
    database: str
    storage: ObjectStorage
    node: ShimProcess

    def controllers(self, endpoint: str = "") -> Controllers:
        """Three that have not started, with everything in the bucket.

        `endpoint`: a front of the bucket's own.
        """
        made = Controllers(self.folder, self.database)
        place = ["--bucket", str(self.storage.bucket)]
        place += ["--bucket-endpoint", endpoint or self.storage.endpoint]
        for one in made.all:
            one.daemon.argv.extend(place)
        return made


@contextmanager
def parts_of_peers(*of_shim: str) -> Iterator[Parts]:
    """`of_shim`: options of the node's shim."""
    folder = Path(tempfile.mkdtemp(prefix="fl-prove-", dir="/tmp"))
    folder.chmod(0o755)
    with ExitStack() as closing:
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        server = PostgresqlServer(folder / "pg")
        server.start()
        closing.callback(server.stop)
        node = ShimProcess(folder / "n", "process", *of_shim)
        node.start()
        closing.callback(node.close)
        storage = closing.enter_context(object_storage(folder))
        yield Parts(folder, server.new_database(), storage, node)
