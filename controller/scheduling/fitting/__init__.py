"""Fitting answers whether a job fits on a node, and what it gets there.

`fit` compares needs with what is free, `constraints` compares attributes, `capacity` says what
could be free after evictions, and `grant` fixes what an allocation gives its job.
"""
