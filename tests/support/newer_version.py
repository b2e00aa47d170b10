"""The program of a version that does not exist yet: this one, with one more migration."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from controller.store import schema

NEWER = "0.2.0"
NEWER_SCHEMA = "9999"
_MIGRATION = f'''
import sqlalchemy as sa
from alembic import op

revision = "{NEWER_SCHEMA}"
down_revision = "{schema.SCHEMA_VERSION}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("newer", sa.Text()))
'''
_PROGRAM = """#!{python}
from pathlib import Path
import fairlead.version
fairlead.version.__version__ = {version!r}
import controller
controller.__version__ = {version!r}
from controller.store import schema
schema.SCHEMA_VERSION = {schema!r}
schema.MIGRATIONS = Path({migrations!r})
from fairlead.cli.main import main
main()
"""


def newer_programs(folder: Path) -> Path:
    """Make the folder, with its `fairlead`, for `ControllerProcess(programs=…)`."""
    migrations = folder / "migrations"
    shutil.copytree(schema.MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
    (migrations / "versions" / "v9999_newer.py").write_text(_MIGRATION)
    program = folder / "fairlead"
    program.write_text(
        _PROGRAM.format(
            python=sys.executable,
            version=NEWER,
            schema=NEWER_SCHEMA,
            migrations=str(migrations),
        )
    )
    program.chmod(0o755)
    return folder
