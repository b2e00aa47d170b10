"""The machine.

`machine` says what it has, `ledger` who holds what of it; `pythons` keeps its Python interpreters.
"""
