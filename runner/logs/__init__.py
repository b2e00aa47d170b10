"""The output of a job: frames in segment files (`segments.SegmentLog`), and the readers that follow
them.
"""
