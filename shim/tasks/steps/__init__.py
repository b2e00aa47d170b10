"""Setting a task up: one module for each kind of step; the driver alone imports it. Each step has
`do` and `undo`, and both can be repeated.
"""
