"""The store keeps what the controller must not forget: runs, nodes, users and events.

`base.Store` is the seam and `sql.SqlStore` keeps it in a database; tests have stores of their own.
A change that `commit` returned for survives `kill -9`; one controller at a time can commit.
"""
