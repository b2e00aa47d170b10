"""The schema's history, a file for each step, for every supported database (`schema.upgrade`).

A step that was released is never changed. It spells out its tables and imports nothing of `schema`.
"""
