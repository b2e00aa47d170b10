"""The store keeps what the controller must not forget: runs, nodes, users and events.

`base.Store` is the seam and `sql.SqlStore` keeps it in a database; tests have stores of their own.
A change survives `kill -9` once `commit` has returned. One controller at a time can commit.
"""
