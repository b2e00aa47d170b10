"""What each of the latest turns changed, so that a follower reads again only that.

The leader notes the keys of each commit (`notes`), only where others may follow. A follower reads
what is stored of them (`changed_state`).
"""
