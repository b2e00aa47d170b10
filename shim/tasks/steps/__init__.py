"""One module for each step of setting a task up; each has `do` and `undo`, and both can be
repeated.
"""
