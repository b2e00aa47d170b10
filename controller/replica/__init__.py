"""A follower's copy of the leader's state, and the lists and pages that it answers from it.

The copy (`copy`) is the leader's own services over what the database has. What was committed before
a request came is read before its answer is made (`reading`). What the leader alone has in memory is
asked of it (`alone`, `parts`). `answers` has the routes, also those of uploads, which a follower
takes into the bucket itself (`uploads`).
"""
