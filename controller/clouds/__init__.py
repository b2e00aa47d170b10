"""Clouds: who rents machines, behind one small Protocol (`base`).

`exec` asks a program of the operator. `qemu` makes virtual machines on this host (`guests`).
"""
