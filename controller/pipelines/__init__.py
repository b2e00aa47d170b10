"""The pipelines carry runs through their lives.

`run_pipeline` decides in turns. `effects` makes the outside match what was committed, with the
performers of `job_running`, `job_terminating` and `log_collection`. `to_node` and `from_node`
translate.
"""
