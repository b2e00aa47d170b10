"""Engines run tasks: in Docker containers, or as plain processes (development only)."""
