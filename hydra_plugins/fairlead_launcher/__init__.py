"""The launcher of Hydra: `python train.py -m hydra/launcher=fairlead lr=0.1,0.01`.

`config`    what `hydra.launcher.…` may say
`launcher`  the launcher; Hydra imports it at each start, so it loads the client when it launches
`in_job`    what a job runs
"""
