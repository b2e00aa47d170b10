"""The node's GPUs: what they are, who may have them, how healthy they are, how a container gets
them.

`base` is the seam and `nvml` the real version. `selection` and `health` decide without I/O, `watch`
keeps what is known up to date, and `handover` gives GPUs to an engine.
"""

from shim.gpus.base import Gpus

__all__ = ["Gpus"]
