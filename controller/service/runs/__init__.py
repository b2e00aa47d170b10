"""What users ask for about runs, from the submission to the end.

`submissions` makes runs: a submission goes through `submission_stages`, and becomes a run with its
uploads (`blobs`) and its name (`names`); `plans` says where one would go. `lookup` finds and lists
them, and `explanations` says why one waits. `actions` and `deployments` change live ones. `queue`
is the order in which jobs wait, `progress` what their nodes prepare.
"""
