"""The output of a job: frames in segment files, and the readers that follow them. The door is
`segments.SegmentLog`."""
