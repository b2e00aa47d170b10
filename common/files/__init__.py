"""Files that more than one program writes or reads.

`task_folder` names those through which shim and runner work together, `log_segments` the files of a
log, and `output_tar` packs what a job left. `durable` writes survive a power cut, and
`shared_folders` expects that others change a folder at the same time. Everything here blocks.
"""
