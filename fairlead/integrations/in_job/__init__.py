"""The program of a job of submitit's. It travels in a zip with submitit and cloudpickle, so the
job's image needs Python alone: nothing else of Fairlead may be imported here.

`main`         starts the tasks of this node, limits their time, starts them again
`environment`  what submitit asks about the job
"""
