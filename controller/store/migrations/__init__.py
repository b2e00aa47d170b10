"""The schema's history: one file for each step, for every supported database (`schema.upgrade`).

A released step never changes. It spells out its tables and imports nothing of `schema`.
"""
