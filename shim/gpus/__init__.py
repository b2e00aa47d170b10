"""The node's GPUs: what they are, who may have them, how they are, how a container gets them.

`base` is the seam, `nvml` the real version. `selection` and
`health` decide without I/O; `watch` keeps what is known up to date; `handover` says how an engine
is asked.
"""

from shim.gpus.base import Gpus

__all__ = ["Gpus"]
