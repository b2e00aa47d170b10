"""The controller's side of each node: connect, compare, follow, reconnect.

`manager` keeps one `session` for each node. `sync` compares the node with the database; `notices`
passes on what a shim says about GPUs. `health` judges readings, `silence` says when a node is given
up, and `engines` when its engine is. `drains` and `strays` look after drain deadlines and unknown
tasks.
"""
