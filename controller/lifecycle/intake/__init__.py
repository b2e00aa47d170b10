"""Intake applies the reports of a turn to a run, before anything is decided (docs/rules.md 2.5).

`facts` writes what was seen on nodes, `claims` ranks what reports say about an attempt's end, and
`requests` carries out what users ask.
"""
