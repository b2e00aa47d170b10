"""The pipelines carry runs through their lives.

`run_pipeline` takes the turns, and `turn` is one in progress. `effects` makes the outside match
what was committed, with the `performers`, one for each kind of effect. `to_node` and `from_node`
translate.
"""
