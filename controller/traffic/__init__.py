"""Traffic: where requests to services go, and how many there are.

`routes` shows the committed replicas of each service to the proxy; `statistics` counts the proxy's
requests for the autoscaler and for drains. Both are in memory only. Begin with `routes`.
"""
