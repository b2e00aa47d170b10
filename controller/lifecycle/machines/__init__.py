"""Machines: rented computers, from the order to the end of the bill (docs/rules.md 12).

`model` has the record of a machine and what a provider offers. `market` chooses offers, remembers
refusals and keeps budgets. `sizes` knows which machines had less than promised. `life` moves one
record by reports and time. `reconcile` compares the records with what a provider lists. `reasons`
says why a job gets no machine. All of it is pure; what the queue needs is found in
`scheduling.renting`.
"""
