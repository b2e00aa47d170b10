"""How the controller reaches a node: one link per node, over SSH or a local unix socket."""
