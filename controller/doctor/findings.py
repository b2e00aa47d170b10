"""Judges the facts about a controller; pure."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from controller import __version__
from controller.doctor.facts import Certificate, Facts
from controller.following import MAX_CLOCK_DIFFERENCE, minor_steps
from controller.identity import INSTALLATION_NAME
from controller.lifecycle.inventory import unknown_users
from controller.lifecycle.machines.homes import homeless
from controller.outputs.bucket import fingerprint_of
from controller.store import schema
from controller.store.base import ROOM_BYTES, Peer, is_full
from controller.store.examination import DatabaseFacts
from controller.store.sqlite import DATABASE_NAME
from fairlead.wire.node import Finding, FindingLevel

MIN_SERVER = 13
_GIB = 1 << 30
_MIN_DISK, _ROOMY_DISK = 1 * _GIB, 10 * _GIB
_MAX_DRIFT = 1.0
_SLOW_QUESTION = 0.05
_RENEW_DAYS = 14
MAX_BUCKET_CLOCK = 300.0
"""Seconds. S3 refuses a request that was signed 15 minutes from its time."""


def examine(facts: Facts) -> list[Finding]:
    """Return at least one finding of each check."""
    checks = (
        *(_folder, _keys, _database, _schema, _leader, _clock, _others, _addresses, _port, _tls),
        *(_buckets, _config, _value),
    )
    return [finding for check in checks for finding in check(facts)]


def upgrade(facts: Facts, version: str = __version__) -> list[Finding]:
    """Return whether a controller of this version can run next to those that are up, what its start
    changes, and what else is wrong with what it shares with the others."""
    database = facts.database
    if database.why is not None:
        return list(_database(facts))
    shared = (
        one for check in (_database, _keys, _clock, _buckets, _config) for one in check(facts)
    )
    wrong = [one for one in shared if one.level is FindingLevel.ERROR]
    return [*wrong, *_schema_step(database), *_versions(database, version), *_order(facts, version)]


def ok(check: str, message: str) -> Finding:
    return Finding(check=check, level=FindingLevel.OK, message=message)


def warn(check: str, message: str, fix: str) -> Finding:
    return Finding(check=check, level=FindingLevel.WARNING, message=message, fix=fix)


def bad(check: str, message: str, fix: str) -> Finding:
    return Finding(check=check, level=FindingLevel.ERROR, message=message, fix=fix)


def _folder(facts: Facts) -> Iterator[Finding]:
    data = facts.setup.data
    if facts.folder is not None:
        fix = f"run this as the controller's user; that user must own {data} and may write there"
        yield bad("disk", f"{data} cannot be used: {facts.folder}", fix)
        return
    free = f"{facts.free / _GIB:.1f} GiB of {facts.total / _GIB:.0f} are free below {data}"
    fix = "remove files there, or shorten --keep-logs and --keep-outputs"
    if facts.free < _MIN_DISK:
        yield bad("disk", f"{free}: logs and uploads will be refused", fix)
    elif facts.free < _ROOMY_DISK:
        yield warn("disk", free, fix)
    else:
        yield ok("disk", free)


def _keys(facts: Facts) -> Iterator[Finding]:
    if facts.unusable_keys is not None:
        yield bad("keys", facts.unusable_keys, "run this as the controller's user")
        return
    names = " and ".join(path.name for path in facts.missing_keys)
    are = "are" if len(facts.missing_keys) > 1 else "is"
    if names and _alive_others(facts):
        fix = "copy id_ed25519 and secrets.key from the data folder of a controller that works"
        yield bad("keys", f"{names} {are} missing, and other controllers have theirs", fix)
    elif names and facts.database.schema is not None:
        fix = "copy them from the former controller's data folder, or from where you keep them"
        yield bad("keys", f"{names} {are} missing, but the database is in use", fix)
    elif names:
        yield ok("keys", f"{names} {are} made by the first start")
    for path in facts.open_keys:
        yield bad("keys", f"others can read {path}", f"chmod 600 {path}")
    if names:
        return
    wrong = [one.url for one in _alive_others(facts) if one.key_files not in (None, facts.keys)]
    if wrong:
        fix = "copy id_ed25519 and secrets.key from the leader's data folder to all others"
        yield bad("keys", f"they are not those of {', '.join(wrong)}", fix)
    else:
        count = len(_alive_others(facts))
        yield ok(
            "keys",
            f"they are there, and equal on {count + 1} controllers" if count else "they are there",
        )


def _database(facts: Facts) -> Iterator[Finding]:
    database = facts.database
    if database.why is not None:
        fix = "check the address, the password, and the server's pg_hba.conf and listen_addresses"
        if database.kind == "sqlite":
            fix = "run this as the controller's user; restore a backup if the file is damaged"
        yield bad("database", f"it cannot be used: {database.why}", fix)
        return
    if facts.installation not in (None, database.installation):
        of_database = database.installation
        found = "is empty" if of_database is None else f"is that of {of_database}"
        own = f"{facts.setup.data} belongs to the installation {facts.installation}"
        fix = (
            "give the database and the folder of one installation; if the database was replaced on "
            f"purpose, remove {facts.setup.data / INSTALLATION_NAME}"
        )
        yield bad("database", f"{own}, and the database {found}: the controller won't start", fix)
    if database.kind == "sqlite":
        yield ok("database", f"SQLite, in {facts.setup.data / DATABASE_NAME}")
        return
    server = f"PostgreSQL {database.server // 10000}.{database.server % 10000}"
    if database.server // 10000 < MIN_SERVER:
        fix = f"upgrade the server to PostgreSQL {MIN_SERVER} or newer"
        yield bad("database", f"{server} is too old", fix)
    if database.encoding != "UTF8":
        fix = "make one with `createdb --encoding UTF8 --template template0`"
        yield bad("database", f"its encoding is {database.encoding}", fix)
    if database.is_read_only:
        fix = "give the address of the primary server, or promote this one"
        yield bad("database", "the server is a standby: nothing can be written", fix)
    if not database.may_create and database.schema != schema.SCHEMA_VERSION:
        fix = "let the controller's user own the database, or GRANT CREATE ON SCHEMA public"
        yield bad("database", "its user may not make tables, which this version must", fix)
    if database.is_pooled:
        fix = "give the server's own address: a pool keeps no lock of the leader"
        yield warn("database", "a pool gives each transaction another session", fix)
    state = f"{server} answers in {database.seconds * 1000:.0f} ms"
    if database.seconds > _SLOW_QUESTION:
        fix = "move the controllers next to the server: each turn takes several such answers"
        yield warn("database", state, fix)
    else:
        yield ok("database", state)


def _schema(facts: Facts) -> Iterator[Finding]:
    if facts.database.why is None:
        yield from _schema_step(facts.database)


def _schema_step(database: DatabaseFacts) -> Iterator[Finding]:
    found, ours = database.schema, schema.SCHEMA_VERSION
    if found is None:
        yield ok("schema", f"the database is empty; the first start makes schema {ours}")
    elif found == ours:
        yield ok("schema", f"it is {ours}, that of this version")
    elif found > ours:
        fix = "install the version that wrote it, or a newer one"
        yield bad("schema", f"it is {found}; this version knows {ours} and cannot lead", fix)
    else:
        yield warn(
            "schema",
            f"it is {found}; this version makes it {ours} when it leads, and the earlier version "
            "cannot lead after that",
            "back the database up (pg_dump, or `fairlead controller backup`) before that",
        )


def _leader(facts: Facts) -> Iterator[Finding]:
    database = facts.database
    if database.why is not None or database.kind == "sqlite" or database.schema is None:
        return
    left = database.lease_left
    if left is None or left <= 0:
        since = "never" if left is None else f"for {-left:.0f} s not"
        fix = "start a controller, or look into the log of one that waits"
        yield bad("leader", f"nobody leads: the lease was {since} renewed", fix)
        return
    leader = None if database.sight is None else database.sight.leader
    if leader is None:
        yield ok("leader", f"{database.holder} leads; it was started without --url")
        return
    if not database.is_locked:
        yield warn(
            "leader",
            f"{leader.url} leads without its lock: a death is noticed after {left:.0f} s only",
            "wait some seconds; if it stays, look for a pool (PgBouncer) or cut connections",
        )
    else:
        yield ok("leader", f"{leader.url} leads and has its lock")
    if is_full(leader.free):
        fix = (
            "remove files in its data folder, or stop it; with --bucket it hands over to a "
            f"controller with {ROOM_BYTES >> 20} MiB free"
        )
        yield warn("leader", f"{leader.url} leads although its disk is full", fix)


def _clock(facts: Facts) -> Iterator[Finding]:
    database = facts.database
    if database.why is not None or database.kind == "sqlite":
        return
    off = database.clock_offset
    word = "ahead of" if off > 0 else "behind"
    state = f"this machine's clock is {abs(off):.1f} s {word} the database's"
    fix = "synchronize the clocks of both machines (timedatectl set-ntp true)"
    if abs(off) > MAX_CLOCK_DIFFERENCE:
        yield bad("clock", f"{state}: the controller refuses to start", fix)
    elif abs(off) > _MAX_DRIFT:
        yield warn("clock", state, fix)
    else:
        yield ok("clock", "this machine's and the database's clock agree within 1 s")


def _others(facts: Facts, version: str = __version__) -> Iterator[Finding]:
    sight = facts.database.sight
    if sight is None or facts.setup.url is None:
        return
    gone = [one.url for one in sight.peers if not sight.is_alive(one)]
    alive = {one.url for one in sight.peers if sight.is_alive(one)}
    if missing := sorted(set(gone) - alive):
        fix = "start it again; one that is gone for good leaves this list after a day"
        yield warn("others", f"gone: {', '.join(missing)}", fix)
    versions = {one.version for one in sight.peers if sight.is_alive(one)}
    far = {one.version for one in _alive_others(facts) if minor_steps(one.version, version) > 1}
    for other in sorted(far):
        yield _too_far(other, version)
    if len(versions) > 1:
        fix = "end the upgrade: those that wait first, the leader last"
        yield warn("others", f"they have versions {', '.join(sorted(versions))}", fix)
    if len(alive) == 1:
        yield warn(
            "others",
            "one controller is up: nobody takes over when it dies",
            "start another one with the same --database and its own --url",
        )
    elif alive and not missing:
        yield ok("others", f"{len(alive)} controllers are up")


def _addresses(facts: Facts) -> Iterator[Finding]:
    for url, why in facts.answers.items():
        whose = "--url" if url == facts.setup.url else "another controller's --url"
        if why is not None and url == facts.setup.url and _is_to_start(facts):
            yield ok("address", f"{url} (--url) can be tried once this controller is started")
        elif why is not None:
            fix = "start that controller; else check its firewall, DNS name and certificate"
            yield bad("address", f"{url} ({whose}) does not answer from here: {why}", fix)
        else:
            yield ok("address", f"{url} ({whose}) answers from here")
    others = [one.url for one in _alive_others(facts) if not _is_loopback(one.url)]
    if facts.setup.url is not None and _is_loopback(facts.setup.url) and others:
        fix = "give --url an address of this machine that the others reach"
        yield bad("address", f"{facts.setup.url} leads each machine to itself", fix)


def _port(facts: Facts) -> Iterator[Finding]:
    host, port = facts.setup.listen
    if facts.port is not None:
        fix = "end the program that has it (ss -ltnp), or give another address with --listen"
        yield bad("port", f"{host}:{port} cannot be had: {facts.port}", fix)
    elif facts.listens:
        yield ok("port", f"a controller listens on {host}:{port}")
    else:
        yield ok("port", f"{host}:{port} is free")


def _tls(facts: Facts) -> Iterator[Finding]:
    found, url = facts.certificate, facts.setup.url
    if isinstance(found, str):
        yield bad("tls", found, "give a PEM certificate and its key, which this user can read")
    elif isinstance(found, Certificate):
        days = found.ends_in_days
        if days <= 0:
            yield bad("tls", "the certificate has expired", "renew it; it is used within 30 s")
        elif days < _RENEW_DAYS:
            yield warn("tls", f"the certificate ends in {days:.0f} days", "renew it")
        else:
            yield ok("tls", f"the certificate holds for {days:.0f} days")
        host = urlsplit(url).hostname if url else None
        if host is not None and not any(_covers(name, host) for name in found.names):
            fix = f"get one that names {host}"
            yield bad("tls", f"the certificate is for {', '.join(found.names) or 'nobody'}", fix)
    elif url is not None and url.startswith("https:"):
        fix = "give --tls-cert and --tls-key, or end TLS in a proxy at that address"
        yield warn("tls", "--url says https, and there is no certificate", fix)
    elif not _is_local(facts.setup.listen[0]):
        fix = "give --tls-cert and --tls-key"
        yield warn("tls", "tokens and logs go over the network without TLS", fix)
    else:
        yield ok("tls", "the controller listens on this machine's loopback, without TLS")


def _buckets(facts: Facts) -> Iterator[Finding]:
    own_buckets = fingerprint_of(facts.setup.bucket, facts.setup.logs_bucket)
    if wrong := [one.url for one in _alive_others(facts) if one.buckets not in (None, own_buckets)]:
        fix = "give all controllers the same --bucket and --logs-bucket, with the same endpoints"
        message = f"{', '.join(wrong)} has others than this controller, which won't start"
        yield bad("bucket", message, fix)
    elif not facts.buckets:
        yield ok("bucket", "none is named")
    own = facts.installation or facts.database.installation
    for found in facts.buckets:
        named = f"{found.bucket} ({found.option})"
        is_own = found.option == "--bucket"
        if found.why is not None:
            rights = "list, put, get, copy and delete"
            if found.option == "--outputs-bucket":
                rights = "put, get and delete"
            fix = (
                "check the name, the endpoint, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
                f"AWS_REGION, and let the keys {rights} below the prefix"
            )
            yield bad("bucket", f"{named} cannot be used: {found.why}", fix)
        elif found.owner not in (None, own):
            fix = "give another bucket or prefix"
            yield bad("bucket", f"{named} belongs to the installation {found.owner}", fix)
        elif abs(found.clock_ahead) > MAX_BUCKET_CLOCK:
            side = "ahead of" if found.clock_ahead > 0 else "behind"
            fix = "let NTP set this machine's clock: the storage refuses requests of another time"
            yield bad(
                "bucket",
                f"the clock of {named} is {abs(found.clock_ahead):.0f} s {side} this one",
                fix,
            )
        else:
            new = " and is new" if is_own and found.owner is None else ""
            yield ok("bucket", f"{named} can be written and read{new}")


def _config(facts: Facts) -> Iterator[Finding]:
    file = facts.setup.config
    if file is not None and file.fault is not None:
        yield bad("config", f"no controller starts with it: {file.fault}", f"edit {file.path}")
        return
    missing = homeless({} if file is None else file.regions, facts.database.machines)
    if missing is not None:
        fix = "name it in the file"
        if file is None:
            fix = "give the controller's --config, if it has one"
        yield bad("config", f"no controller starts like this: {missing}", fix)
    elif file is None:
        yield ok("config", "none is named")
    elif unknown := unknown_users(file.limited, facts.database.users):
        yield warn("config", unknown, f"edit {file.path}, or add the user")
    else:
        yield ok("config", f"{file.path} can be used")


def _value(facts: Facts) -> Iterator[Finding]:
    """Say what is lost with the data folder."""
    setup = facts.setup
    lost = ["the keys"]
    if facts.database.kind == "sqlite":
        lost.append("the database")
    if setup.bucket is None:
        has_all = setup.outputs_bucket is None
        outputs = "outputs" if has_all else "small outputs and all lists of outputs"
        lost += ["uploads", outputs, "the history of use"]
        if setup.logs_bucket is None:
            lost.append("logs")
    state = f"{setup.data} alone has {', '.join(lost)}"
    if setup.bucket is None and setup.url is not None:
        fix = "give --bucket: a controller on another machine then has all but the keys"
        yield warn("value", state, fix)
    else:
        yield ok("value", f"{state}: keep a copy of that")


def _versions(database: DatabaseFacts, version: str) -> Iterator[Finding]:
    sight = database.sight
    alive = [] if sight is None else [one for one in sight.peers if sight.is_alive(one)]
    others = sorted({one.version for one in alive} - {version})
    if not alive:
        left = database.lease_left or 0.0
        if database.kind == "postgresql" and left > 0:
            fix = f"stop {database.holder} first: this version then starts without a successor"
            yield bad("versions", "a controller without --url is up and lets none wait", fix)
        else:
            yield ok("versions", "no other controller is up")
        return
    for other in others:
        if minor_steps(other, version) > 1:
            yield _too_far(other, version)
        else:
            yield ok("versions", f"{version} can wait next to {other}, and takes over from it")
    if not others:
        yield ok("versions", f"all {len(alive)} controllers have this version ({version})")


def _too_far(other: str, version: str) -> Finding:
    fix = "upgrade one minor version after the other"
    return bad("versions", f"{other} and {version} cannot share a database", fix)


def _order(facts: Facts, version: str) -> Iterator[Finding]:
    database = facts.database
    sight, found = database.sight, database.schema
    if sight is None or found is None or found >= schema.SCHEMA_VERSION:
        return
    old = [one for one in sight.peers if sight.is_alive(one) and one.version != version]
    waiting = [one.url for one in old if not one.leads]
    if waiting:
        fix = "upgrade them before you stop the leader: none of them can lead after this version"
        yield warn("order", f"{', '.join(waiting)} wait with the earlier version", fix)
    leader = next((one.url for one in old if one.leads), None)
    if leader is not None:
        yield ok(
            "order", f"stop {leader} last: one of this version then leads and changes the schema"
        )


def _alive_others(facts: Facts) -> list[Peer]:
    sight = facts.database.sight
    if sight is None:
        return []
    return [one for one in sight.peers if sight.is_alive(one) and one.url != facts.setup.url]


def _is_to_start(facts: Facts) -> bool:
    """Return whether nothing has the port, and no controller of this address has been killed."""
    sight = facts.database.sight
    was_killed = sight is not None and any(one.url == facts.setup.url for one in sight.peers)
    return facts.port is None and not facts.listens and not was_killed


def _covers(name: str, host: str) -> bool:
    """A wildcard stands for one label (RFC 6125, 6.4.3)."""
    if name.startswith("*."):
        return host.lower().partition(".")[2] == name[2:].lower()
    return host.lower() == name.lower()


def _is_loopback(url: str) -> bool:
    return _is_local(urlsplit(url).hostname or "")


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
