"""Links are how the controller reaches a node: one for each node, over SSH or a local unix
socket."""
