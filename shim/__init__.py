"""The shim runs tasks on a node: it gives them GPUs, volumes, images and containers.

`main` starts it and `daemon.Daemon` joins its parts; callers use `client` and `schemas`.
"""
