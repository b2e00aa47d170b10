"""Browsers at a service: how people log in there (`login`), and what a browser shows instead of a
token (`sessions`, `cookies`). `site` says by which addresses browsers reach us."""
