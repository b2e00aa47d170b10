"""The controller's side of each node: connect, compare, follow, reconnect.

`manager` keeps one `session` for each node; `sync` compares the node with the database; `health`
judges readings and silence; `drains` and `strays` look after drain deadlines and unknown tasks.
"""
