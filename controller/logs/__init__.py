"""The job logs that the controller keeps: what it acknowledged to a runner is durable here.

`store` writes what runners send and gives it to readers as it comes. `segments` are its files;
`windows` shows a part of a log as rows, and `search` finds lines in it. With a bucket, a log lies
there in `parts`, and `copies` makes what is here as new as that.
"""
