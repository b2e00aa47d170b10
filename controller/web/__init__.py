"""The dashboard: pages that the controller serves to browsers under `/dashboard`.

`app.Dashboard` mounts it. A page (`page`, and each of them in `pages`) is a route in `PAGES` of its
module, a function from a `Visit` to a `Page` (template and context), and a template; what a page
shows is made by pure functions of the service's answers. `login` lets a browser in, `sessions`
decides which requests are a user's, `live` tells open pages what changed, `states` has the colours,
`assets` the files. It asks the services, and no store.
"""
