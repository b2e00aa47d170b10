"""Clouds: who rents machines, behind one small Protocol (`base`).

`exec` asks a program of the operator; `aws` asks EC2 of Amazon, `hetzner` the cloud of Hetzner. One
is loaded only where the controller's file names it. `catalog` has the prices that come with a
release, and `sizes` what of a machine is left for jobs.
"""
