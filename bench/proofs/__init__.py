"""Promises that take many tries to believe; each module is one, run as `./dev prove NAME`."""
