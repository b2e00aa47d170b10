"""What other libraries load of Fairlead; each part needs its library, and `import fairlead` none.

`submitit`  the executor `fairlead` of submitit, which it finds by its entry points
`stage`     the files that such a job brings: pickles, and a zip of what its Python may lack
`in_job`    the program of that zip; it knows nothing of the rest

The launcher of Hydra lies in `hydra_plugins`, where Hydra looks for it, and uses the executor.
"""
