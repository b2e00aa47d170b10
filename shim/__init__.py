"""The shim runs tasks on a node: GPUs through NVML, volumes, images, containers.

The door is `main`; `daemon.Daemon` joins the parts; `client` and `schemas` are for callers."""
