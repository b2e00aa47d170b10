"""Which value lives in which table."""

from __future__ import annotations

from controller.lifecycle.history import Event
from controller.lifecycle.model import Allocation, Attempt, Fleet, Job, Node, Run
from controller.store import tables
from controller.store.rows import RowCodec
from controller.store.users import StoredToken, User

RUN = RowCodec(Run, tables.runs, without=frozenset({"past_running"}))
JOB = RowCodec(Job, tables.jobs, without=frozenset({"attempts", "past"}))
ATTEMPT = RowCodec(Attempt, tables.attempts)
ALLOCATION = RowCodec(Allocation, tables.allocations)
FLEET = RowCodec(Fleet, tables.fleets)
NODE = RowCodec(Node, tables.nodes)
USER = RowCodec(User, tables.users)
TOKEN = RowCodec(StoredToken, tables.tokens)
EVENT = RowCodec(Event, tables.events)
