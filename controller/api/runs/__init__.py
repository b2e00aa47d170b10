"""Runs as REST: submit, list, show, watch and change them, with their events and uploads.

One module holds one resource: its bodies, handlers and routes.
"""
