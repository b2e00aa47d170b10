"""Files in a folder that a job can write: the job may be hostile, so nothing there is trusted.

`safe_files` opens them through no link and never outside of the folder; `outputs` packs what the
job left.
"""
