"""Clouds: who rents machines, behind one small Protocol (`base`).

`exec` asks a program of the operator; `aws` asks EC2 of Amazon, `gcp` Compute Engine of Google,
`hetzner` the cloud of Hetzner; `qemu` makes virtual machines on this host (`guests`). One is loaded
only where the controller's file names it. `rest` makes the calls of REST APIs. `catalog` has the
prices that come with a release, and `sizes` what of a machine is left for jobs.
"""
