"""The images of the node: pulled once for all tasks, removed when the disk is nearly full.

`images` pulls, keeps and removes them; `ahead` pulls what no task wants yet; `access` decides which
run may use an image that was pulled with credentials.
"""
