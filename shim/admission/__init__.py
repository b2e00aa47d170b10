"""Whether a request for a task is accepted; pure, and before anything happens on the node.

`validation` checks what any node would refuse, `container_rules` what this node's operator forbids.
"""
