"""The JSON documents that users and their scripts read, as types, in a module for each subject.

`RunView` (`runs`) is a contract (`inspect --json`): every field is always there, null or empty when
it has no value; times are ISO 8601 in UTC. Fields are added, never renamed or removed.
`controller.api.views` makes these documents; the CLI and the client read them. They stand apart
from the routes that answer with them, because a user's command loads them and must load no server.
"""
