"""The documentation as a site: `./dev site`.

`site` copies the pages, adds what is generated, and builds them with MkDocs in strict mode: a dead
link or a missing anchor fails. `api_reference` renders the OpenAPI document, so that the site
needs no network when it is read.
"""
