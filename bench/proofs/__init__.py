"""Promises that need many tries to be believed; each module is one, run as `./dev prove NAME`."""
