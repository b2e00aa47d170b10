"""The node's GPUs: what they are, who may have them, how healthy they are.

`base` is the seam, `nvidia` and `amd` the real versions. `selection` and `health` decide without
I/O, `watch` keeps what is known up to date. How a container gets its GPUs is the engine's affair.
"""

from shim.gpus.base import Gpus

__all__ = ["Gpus"]
