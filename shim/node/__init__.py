"""The machine: what it has, who holds it (`ledger`), its figures (`metrics`), and what watches the
shim itself.
"""
