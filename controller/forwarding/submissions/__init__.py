"""Submissions that come to a follower: it reads them, and gives many at once to the leader.

A follower checks who submits and reads the file (`readings`). What passes goes with all others that
came meanwhile as one request to the leader (`batches`, `messages`), which decides about each of
them and makes all runs in one turn (`admitting`). Each client gets the leader's own answer
(`answering`). What is odd in any way is passed on as it came, by the `forwarder`.
"""
