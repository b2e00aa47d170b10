"""The entry for Alembic: the caller gives its connection, and the whole upgrade is one
transaction."""

from __future__ import annotations

from alembic import context

from controller.store.schema import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
