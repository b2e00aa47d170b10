"""The machine: what it has (`machine`), and who holds what of it (`ledger`)."""
