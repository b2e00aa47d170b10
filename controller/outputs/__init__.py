"""The outputs of attempts: what jobs left in their output folders.

`store` keeps them next to the logs and gives them out. With a bucket, `uploads` moves large ones
there: `bucket` is the client, and `uploading` the program that sends one file.
"""
