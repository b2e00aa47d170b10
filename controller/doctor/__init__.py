"""Examines what a controller needs on its machine and of the other controllers, with a fix for each
fault; and says whether this version can run next to those that are up.

The findings are functions of facts. `gathering` looks, and changes nothing, so it can run next to a
controller that works.
"""
