"""The store keeps what the controller must not forget: runs, nodes, users and events.

`base.Store` is the seam and `sql.SqlStore` keeps it in a database (`sqlite`, `postgresql`); tests
have stores of their own. `queries` reads and `writes` changes the tables of `schema` by the codecs
of `rows`. A change survives `kill -9` once `commit` has returned. One controller at a time can
commit (`lease`).
"""
