"""What the controller must not forget: runs, nodes, users and the story of what happened.

`base.Store` is the seam. `sql.SqlStore` keeps it in a database, `memory.MemoryStore` in a value
that a test or a simulation can carry across restarts, and `failing` has named ways to misbehave.
A change that `commit` returned for survives `kill -9`; one controller at a time can commit.
"""
