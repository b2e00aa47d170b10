"""How others see the state of the node.

`doctor` examines it for its operator, `metrics` measures it for Prometheus and the controller, and
`watchdog` finds what no event reported and tells systemd that the shim is alive.
"""
