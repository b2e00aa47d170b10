"""Followers: controllers that wait, and serve meanwhile.

A follower ends TLS and HTTP itself (`follower`), answers what needs no leader, and passes all else
on (`forwarder`) over kept connections to the leader (`leader_links`). At the leader they arrive in
`follower_links`. A log that grows comes once for all its readers (`live_logs`), and one feed tells
what all watches and open pages wait for (`feed`, `feeding`, `leader_feed`). Both ends prove that
they have the installation's key (`credentials`).
"""
