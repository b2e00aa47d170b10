"""Gangs: jobs that are placed together and restart together, in incarnations (docs/rules.md 5).

Each module holds one rule of that section: `incarnation` its begin and its phases, `switching` the
switch, `survivors` which allocations and ranks survive it, `freed` what a switch keeps for its run,
`offers` that a gang gets all its allocations or none. `membership.ranks` reads gangs; other
packages ask it.
"""
