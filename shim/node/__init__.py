"""The machine: what it has, who holds it (`ledger`), how it fares (`metrics`), and what watches
over the shim itself."""
