"""The promises of every store, whatever it is made of.

A test module gives a fixture `make_store`, each call of which gives another controller's view of
the same data, and inherits the tests.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from controller.lifecycle.inventory import NodeAddress
from controller.lifecycle.model import Band, EndedSets, Fleet, JobSpec, Role, Use
from controller.store.accounts import ServiceKey, StoredSecret, StoredToken, User
from controller.store.base import Changes, Commits, Gateway, Store, StoredCatalog
from controller.store.errors import LeaseHeld, StoreRefused, StoreUnavailable
from controller.store.rows import submission_mark
from fairlead.model.statuses import AllocationState, AttemptStatus, RunStatus
from fairlead.queries import EventQuery, RunQuery
from fairlead.wire.gateway import Certificate
from tests.doubles.failing_stores import Crash, CrashAfterCommit
from tests.unit.store.samples import (
    a_node,
    a_place,
    a_run,
    a_sweep,
    an_attempt,
    an_event,
    change,
    submission,
    with_status,
)

MakeStore = Callable[[], Store]


class Opened:
    """Has a store that is open."""

    @pytest.fixture
    async def store(self, make_store: MakeStore) -> AsyncIterator[Store]:
        store = make_store()
        await store.open()
        yield store
        await store.close()


class StoreContract(Opened):
    async def test_a_commit_is_noted_for_the_request_that_it_is_made_for(
        self, store: Store
    ) -> None:
        stored = Commits.counted()
        assert not stored.has_any
        await store.commit(Changes(fleets={"f": Fleet(name="f", created_at=1.0)}))
        assert stored.has_any

    async def test_a_new_store_is_empty(self, store: Store) -> None:
        snapshot = await store.load()

        assert snapshot.runs == ()
        assert snapshot.nodes == ()
        assert snapshot.users == ()
        assert await store.events(EventQuery()) == []

    async def test_a_sweep_comes_back_with_its_sets_and_what_began(self, store: Store) -> None:
        state = a_sweep()
        assert state.run.sweep is not None
        await store.commit(submission(state))
        grown = replace(
            state,
            run=replace(state.run, sweep=replace(state.run.sweep, begun=2), version=1),
            ended=EndedSets(jobs=state.jobs),
            jobs=(replace(state.jobs[0], id="r-j2", replica=1, cookie=1, index=1),),
        )
        await store.commit(change(state, grown))

        (found,) = (await store.load()).runs

        assert found.run.sweep == grown.run.sweep
        assert found.sweep == state.sweep
        assert [job.id for job in found.all_jobs] == ["r-j", "r-j2"]

    async def test_a_sweep_forgets_the_values_of_all_its_jobs(self, store: Store) -> None:
        before = a_sweep()
        before = replace(before, jobs=(), ended=EndedSets(jobs=before.jobs))
        await store.commit(submission(before))
        bare = JobSpec(image="busybox")
        assert before.sweep is not None
        after = replace(
            before,
            sweep=replace(before.sweep, spec=bare),
            ended=EndedSets(jobs=tuple(replace(job, spec=bare) for job in before.ended.jobs)),
        )
        await store.commit(change(before, after))

        found = await store.find_run(before.run.id)

        assert found is not None
        assert found.sweep == after.sweep
        assert [job.spec for job in found.all_jobs] == [bare]

    async def test_a_run_comes_back_equal_in_every_field(self, store: Store) -> None:
        state = a_run()
        await store.commit(submission(state))

        assert await store.find_run("run1") == state
        assert (await store.load()).runs == (state,)

    async def test_a_run_can_be_found_by_name_and_the_newest_one_wins(self, store: Store) -> None:
        older = a_run("run1", submitted_at=1.0, status=RunStatus.DONE)
        newer = a_run("run2", submitted_at=2.0)
        await store.commit(submission(newer, older))

        assert await store.find_run("wise-otter-1") == newer
        assert await store.find_run("run1") == older
        assert await store.find_run("nobody") is None

    async def test_a_live_run_is_found_by_its_name_before_a_newer_one_that_has_ended(
        self, store: Store
    ) -> None:
        """The clock of the leader that submitted it was behind."""
        live = a_run("run1", submitted_at=1.0)
        ended = a_run("run2", submitted_at=2.0, status=RunStatus.DONE)
        await store.commit(submission(live, ended))

        assert await store.find_run("wise-otter-1") == live

    async def test_an_id_wins_over_a_name_that_looks_like_it(self, store: Store) -> None:
        by_id = a_run("abc", name="one", submitted_at=1.0)
        by_name = a_run("def", name="abc", submitted_at=2.0)
        await store.commit(submission(by_id, by_name))

        assert await store.find_run("abc") == by_id

    async def test_a_submission_can_be_found_by_its_users_key(self, store: Store) -> None:
        hers = a_run("run1", user="ada", client_key="key")
        his = a_run("run2", user="bob", client_key="key")
        await store.commit(submission(hers, his))

        keys = [("ada", "key"), ("bob", "key"), ("ada", "other"), ("eve", "key")]
        assert await store.find_submissions(keys) == {keys[0]: hers, keys[1]: his}
        assert await store.find_submissions([]) == {}

    async def test_of_several_submissions_with_a_key_the_newest_is_found(
        self, store: Store
    ) -> None:
        old, new = (a_run(f"run{n}", client_key="key", submitted_at=float(n)) for n in (1, 2))
        await store.commit(submission(new, old))
        assert await store.find_submissions([("ada", "key")]) == {("ada", "key"): new}

    async def test_each_submission_with_a_key_has_its_mark(self, store: Store) -> None:
        hers = a_run("run1", user="ada", client_key="key")
        his = a_run("run2", user="bob", client_key="k\0")
        await store.commit(submission(hers, his, a_run("run3", user="eve")))

        marks = {submission_mark("ada", "key"), submission_mark("bob", "k\0")}
        assert set(await store.submission_marks()) == marks

    async def test_changed_and_new_parts_of_a_run_are_stored(self, store: Store) -> None:
        old = a_run()
        await store.commit(submission(old))
        job = old.jobs[0]
        finished = msgspec.structs.replace(job.attempts[1], status=AttemptStatus.DONE, exit_code=0)
        successor = an_attempt("run1", 2, status=AttemptStatus.SUBMITTED)
        new = msgspec.structs.replace(
            with_status(old, RunStatus.PROVISIONING),
            jobs=(
                msgspec.structs.replace(
                    job, retry_at=None, attempts=(job.attempts[0], finished, successor)
                ),
            ),
            allocations=(
                old.allocations[0],
                msgspec.structs.replace(old.allocations[1], state=AllocationState.RELEASED),
                a_place("run1", "3", state=AllocationState.HELD),
            ),
        )
        await store.commit(change(old, new))

        assert await store.find_run("run1") == new

    async def test_a_change_of_one_run_leaves_the_others_alone(self, store: Store) -> None:
        one, two = a_run("run1", submitted_at=1.0), a_run("run2", submitted_at=2.0)
        await store.commit(submission(one, two))
        changed = with_status(one, RunStatus.TERMINATING)
        await store.commit(change(one, changed))

        assert (await store.load()).runs == (changed, two)

    async def test_finished_runs_are_not_loaded_but_listed(self, store: Store) -> None:
        live, done = a_run("run1", submitted_at=1.0), a_run("run2", submitted_at=2.0)
        finished = with_status(done, RunStatus.DONE)
        await store.commit(submission(live, done))
        await store.commit(change(done, finished))

        assert (await store.load()).runs == (live,)
        assert await store.list_runs(RunQuery(all=True)) == [finished, live]
        assert await store.list_runs(RunQuery()) == [live]

    async def test_places_that_a_finished_run_still_occupies_are_loaded(self, store: Store) -> None:
        state = with_status(a_run(), RunStatus.FAILED)
        await store.commit(submission(state))

        assert (await store.load()).leftover_allocations == (state.allocations[1],)

    async def test_runs_are_listed_in_pages_newest_first(self, store: Store) -> None:
        runs = [a_run(f"run{number}", submitted_at=float(number // 2)) for number in range(7)]
        await store.commit(submission(*runs))
        pages = [await store.list_runs(RunQuery(all=True, limit=3))]
        while pages[-1]:
            pages.append(
                await store.list_runs(RunQuery(all=True, limit=3, cursor=pages[-1][-1].run.id))
            )

        listed = [[state.run.id for state in page] for page in pages]
        assert listed == [["run6", "run5", "run4"], ["run3", "run2", "run1"], ["run0"], []]

    async def test_a_page_before_an_unknown_run_is_empty(self, store: Store) -> None:
        await store.commit(submission(a_run()))

        assert await store.list_runs(RunQuery(all=True, cursor="nobody")) == []

    async def test_runs_are_listed_by_status_and_by_a_pattern_of_their_names(
        self, store: Store
    ) -> None:
        named = ("train-1", "train-10", "a%b")
        runs = [a_run(name, name=name, submitted_at=float(at)) for at, name in enumerate(named)]
        await store.commit(submission(*runs))
        done = with_status(runs[1], RunStatus.DONE)
        await store.commit(change(runs[1], done))
        live = runs[0].run.status

        async def names(**wanted: Any) -> list[str]:
            return [state.run.name for state in await store.list_runs(RunQuery(all=True, **wanted))]

        assert await names(name="train-*") == ["train-10", "train-1"]
        assert await names(name="train-?") == ["train-1"]
        assert await names(name="a%*") == ["a%b"]
        assert await names(name="%") == []
        assert await names(status=RunStatus.DONE) == ["train-10"]
        assert await names(status=live, name="t*") == ["train-1"]

    async def test_runs_can_be_listed_of_one_user(self, store: Store) -> None:
        hers, his = a_run("run1", user="ada"), a_run("run2", user="bob")
        await store.commit(submission(hers, his))

        assert await store.list_runs(RunQuery(all=True, user="ada")) == [hers]

    async def test_runs_can_be_listed_of_one_band(self, store: Store) -> None:
        one, two = a_run("run1"), a_run("run2")
        policy = msgspec.structs.replace(two.run.policy, band=Band.PRODUCTION)
        moved = msgspec.structs.replace(two, run=msgspec.structs.replace(two.run, policy=policy))
        await store.commit(submission(one, two))
        await store.commit(change(two, moved))

        assert await store.list_runs(RunQuery(all=True, band=Band.PRODUCTION)) == [moved]
        assert await store.list_runs(RunQuery(all=True, band=one.run.policy.band)) == [one]

    async def test_more_runs_than_fit_in_one_query_come_back_whole(self, store: Store) -> None:
        runs = [a_run(f"run{number:04}", submitted_at=float(number)) for number in range(1100)]
        await store.commit(submission(*runs))

        assert (await store.load()).runs == tuple(runs)

    async def test_nodes_are_added_changed_and_removed(self, store: Store) -> None:
        one, two = a_node("node1", name="b"), a_node("node2", name="a")
        await store.commit(Changes(nodes={"node1": one, "node2": two}))
        assert (await store.load()).nodes == (two, one)

        changed = msgspec.structs.replace(one, draining=False, drain_reason=None, message=None)
        await store.commit(Changes(nodes={"node1": changed}, removed_nodes=("node2", "node3")))
        assert (await store.load()).nodes == (changed,)

    async def test_many_nodes_are_added_and_changed_by_one_commit(self, store: Store) -> None:
        first = {f"node{n}": a_node(f"node{n}", name=f"n{n}") for n in range(4)}
        await store.commit(Changes(nodes=first))
        changed = {
            node_id: msgspec.structs.replace(node, message=f"of {node_id}", draining=False)
            for node_id, node in list(first.items())[1:]
        }
        added = {f"node{n}": a_node(f"node{n}", name=f"n{n}") for n in (4, 5)}
        await store.commit(Changes(nodes={**added, **changed}))
        assert (await store.load()).nodes == (
            first["node0"],
            *changed.values(),
            *added.values(),
        )

    async def test_users_and_tokens_come_back(self, store: Store) -> None:
        user = User(name="ada", role=Role.ADMIN, created_at=1.0)
        token = StoredToken(id="t", user="ada", digest="d" * 64, created_at=1.0, label="first")
        await store.commit(Changes(users=(user,), tokens=(token,)))
        demoted = msgspec.structs.replace(user, role=Role.USER)
        await store.commit(Changes(users=(demoted,)))
        snapshot = await store.load()

        assert snapshot.users == (demoted,)
        assert snapshot.tokens == (token,)

    async def test_secrets_come_back_change_and_go_with_their_user(self, store: Store) -> None:
        user = User(name="ada", role=Role.USER, created_at=0.0)
        own, shared, gone = (
            StoredSecret(id=id, user=by, name="A", sealed="s", created_at=1.0, updated_at=1.0)
            for id, by in (("1", "ada"), ("2", None), ("3", None))
        )
        await store.commit(Changes(users=(user,), secrets=(own, shared, gone)))
        changed = msgspec.structs.replace(shared, sealed="t", updated_at=2.0)
        await store.commit(Changes(secrets=(changed,), removed_secrets=("3",)))
        secrets = (await store.load()).secrets
        assert sorted(secrets, key=lambda secret: secret.id) == [own, changed]
        await store.commit(Changes(removed_users=("ada",)))
        assert (await store.load()).secrets == (changed,)

    async def test_gateways_come_back_change_and_go(self, store: Store) -> None:
        address = NodeAddress(shim_socket="/a.sock", host="gate", port=22, host_key="ssh-ed25519 A")
        certificate = Certificate(kind="files", cert="/c.pem", key="/k.pem")
        kept, gone = (
            Gateway(
                name=name,
                domain=f"{name}.example.com",
                address=address,
                certificate=certificate,
                created_at=1.0,
            )
            for name in ("main", "old")
        )
        await store.commit(Changes(gateways=(kept, gone)))
        changed = msgspec.structs.replace(kept, domain="apps.example.com", is_default=True)
        await store.commit(Changes(gateways=(changed,), removed_gateways=("old",)))

        assert (await store.load()).gateways == (changed,)

    async def test_catalogs_come_back_and_change(self, store: Store) -> None:
        one, other = (StoredCatalog(name=f"{n}.aws", content='{"types": []}') for n in ("a", "b"))
        await store.commit(Changes(catalogs=(one, other)))
        changed = msgspec.structs.replace(one, content='{"types": ["ü"]}')
        await store.commit(Changes(catalogs=(changed,)))
        assert {one.name: one for one in (await store.load()).catalogs} == {
            "a.aws": changed,
            "b.aws": other,
        }

    async def test_a_user_is_removed_with_the_tokens_and_a_token_alone(self, store: Store) -> None:
        ada, bob = (User(name=name, role=Role.USER, created_at=1.0) for name in ("ada", "bob"))
        tokens = [
            StoredToken(id=f"t{number}", user=user, digest="d" * 64, created_at=1.0)
            for number, user in enumerate(("ada", "ada", "bob", "bob"))
        ]
        await store.commit(Changes(users=(ada, bob), tokens=tuple(tokens)))
        await store.commit(Changes(removed_users=("ada", "nobody"), removed_tokens=("t2",)))
        snapshot = await store.load()

        assert snapshot.users == (bob,)
        assert snapshot.tokens == (tokens[3],)

    async def test_keys_of_services_come_back_and_go_alone_or_with_their_user(
        self, store: Store
    ) -> None:
        ada, bob = (User(name=name, role=Role.USER, created_at=1.0) for name in ("ada", "bob"))
        keys = [
            ServiceKey(id=f"k{number}", service="api", user=user, digest="d" * 64, created_at=1.0)
            for number, user in enumerate(("ada", "bob", "bob"))
        ]
        await store.commit(Changes(users=(ada, bob), service_keys=tuple(keys)))
        await store.commit(Changes(removed_users=("ada",), removed_service_keys=("k1",)))

        assert (await store.load()).service_keys == (keys[2],)

    async def test_a_users_granted_bands_come_back(self, store: Store) -> None:
        user = User(name="ada", role=Role.USER, created_at=1.0, bands=(Band.PRODUCTION,))
        await store.commit(Changes(users=(user,)))

        assert (await store.load()).users == (user,)

    async def test_text_that_no_database_takes_can_be_stored_and_looked_up(
        self, store: Store
    ) -> None:
        state = a_run("run1")
        run = msgspec.structs.replace(state.run, message="a\0b", client_key="k\ud800")
        await store.commit(submission(msgspec.structs.replace(state, run=run)))
        found = await store.find_submissions([("ada", "k\ud800")])

        assert found["ada", "k\ud800"].run.id == "run1"
        assert await store.find_run("no\0such\udfff") is None

    async def test_fleets_are_added_changed_and_removed(self, store: Store) -> None:
        racks = Fleet(name="racks", placement="rack", attributes={"zone": "a"}, created_at=1.0)
        attic = Fleet(name="attic", created_at=2.0)
        await store.commit(Changes(fleets={"racks": racks, "attic": attic}))
        assert (await store.load()).fleets == (attic, racks)

        changed = msgspec.structs.replace(racks, placement=None, attributes={})
        await store.commit(Changes(fleets={"racks": changed}, removed_fleets=("attic", "nowhere")))
        assert (await store.load()).fleets == (changed,)

    async def test_recent_use_of_ended_runs_is_loaded(self, store: Store) -> None:
        now, day = time.time(), 86400.0
        held = AllocationState.HELD
        places = (
            msgspec.structs.replace(a_place("run1", "old", state=held), released_at=now - 11 * day),
            msgspec.structs.replace(a_place("run1", "new", state=held), released_at=now - day),
            a_place("run1", "still", state=AllocationState.ORPHANED),
            a_place("run1", "wanted", state=AllocationState.NOMINATED),
        )
        ended = msgspec.structs.replace(
            with_status(a_run("run1"), RunStatus.DONE), allocations=places
        )
        await store.commit(submission(ended, a_run("run2")))

        assert (await store.load()).past_use == (
            Use(user="ada", gpus=2, cpu=2.5, start=100.0, end=now - day),
            Use(user="ada", gpus=2, cpu=2.5, start=100.0, end=None),
        )

    async def test_events_come_in_the_order_of_their_commits_and_can_be_resumed(
        self, store: Store
    ) -> None:
        for cause in ("one", "two", "three"):
            await store.commit(Changes(events=(an_event(cause=cause), an_event("run2", cause))))
        everything = await store.events(EventQuery())

        assert [stored.event.cause for stored in everything] == ["one"] * 2 + ["two"] * 2 + [
            "three"
        ] * 2
        assert everything[0].event == an_event(cause="one")
        assert await store.events(EventQuery(after=everything[2].seq)) == everything[3:]
        assert await store.events(EventQuery(run="run2")) == everything[1::2]
        assert await store.events(EventQuery(before=everything[3].seq, limit=2)) == everything[1:3]
        assert (
            await store.events(EventQuery(run="run2", before=1 << 40, limit=1)) == everything[-1:]
        )
        assert await store.events(EventQuery(run="run2", after=everything[1].seq, limit=1)) == [
            everything[3]
        ]

    async def test_everything_is_there_after_a_restart_with_a_higher_token(
        self,
        make_store: MakeStore,
    ) -> None:
        first = make_store()
        before = await first.open()
        await first.commit(submission(a_run()))
        await first.close()
        second = make_store()
        after = await second.open()
        runs = (await second.load()).runs
        await second.close()

        assert runs == (a_run(),)
        assert after.token == before.token + 1
        assert (after.epoch, after.installation_id) == (before.epoch, before.installation_id)

    async def test_a_second_controller_is_refused_while_the_first_lives(
        self, store: Store, make_store: MakeStore
    ) -> None:
        second = make_store()

        with pytest.raises(LeaseHeld, match="another controller"):
            await second.open()
        await second.close()
        await store.commit(submission(a_run()))
        assert await store.find_run("run1") == a_run()

    async def test_the_lease_can_be_renewed(self, store: Store) -> None:
        await store.renew_lease()

        assert await store.find_run("nobody") is None

    async def test_a_closed_store_can_not_be_used(self, make_store: MakeStore) -> None:
        store = make_store()
        await store.open()
        await store.close()
        await store.close()

        with pytest.raises(StoreUnavailable, match="not open"):
            await store.commit(submission(a_run()))

    async def test_a_commit_whose_caller_crashed_afterwards_is_kept(
        self, make_store: MakeStore
    ) -> None:
        inner = make_store()
        await inner.open()
        crashing = CrashAfterCommit(inner)

        with pytest.raises(Crash):
            await crashing.commit(submission(a_run()))
        assert await inner.find_run("run1") == a_run()
        await inner.close()

    async def test_children_are_listed_by_their_parent_ended_ones_too(self, store: Store) -> None:
        live, ended = a_run("run1", submitted_at=1.0), a_run("run2", submitted_at=2.0)
        ended = with_status(ended, RunStatus.DONE)
        other = a_run("run3", submitted_at=3.0)
        run = msgspec.structs.replace(other.run, parent_id="run1")
        other = msgspec.structs.replace(other, run=run)
        await store.commit(submission(live, ended, other))

        assert await store.list_runs(RunQuery(all=True, parent_id="parent")) == [ended, live]
        assert await store.list_runs(RunQuery(all=True, parent_id="run1")) == [other]
        assert await store.list_runs(RunQuery(all=True, parent_id="run2")) == []


class RefusalContract(Opened):
    """The promises of stores that can be given a value that they cannot hold."""

    async def test_a_number_that_does_not_fit_is_blamed_on_its_run_and_changes_nothing(
        self, store: Store
    ) -> None:
        sound = a_run("run1", submitted_at=1.0)
        attempt = msgspec.structs.replace(
            an_attempt("run2", 0, status=AttemptStatus.FAILED), exit_code=1 << 70
        )
        job = msgspec.structs.replace(a_run("run2").jobs[0], attempts=(attempt,))
        wrong = msgspec.structs.replace(a_run("run2", submitted_at=2.0), jobs=(job,))

        with pytest.raises(StoreRefused) as caught:
            await store.commit(submission(sound, wrong))
        assert caught.value.runs == {"run2"}
        assert (await store.load()).runs == ()
        await store.commit(submission(sound))
        assert (await store.load()).runs == (sound,)

    async def test_a_repeated_row_is_blamed_on_the_run_that_says_it_is_new(
        self, store: Store
    ) -> None:
        one, two = a_run("run1", submitted_at=1.0), a_run("run2", submitted_at=2.0)
        await store.commit(submission(one))

        with pytest.raises(StoreRefused) as caught:
            await store.commit(submission(one, two))
        assert caught.value.runs == {"run1"}
        assert (await store.load()).runs == (one,)

    async def test_the_later_of_two_runs_that_exclude_each_other_is_blamed(
        self, store: Store
    ) -> None:
        state = a_run("run1")
        twice = Changes(runs={"run1": (None, state), "run2": (None, state)})

        with pytest.raises(StoreRefused) as caught:
            await store.commit(twice)
        assert caught.value.runs == {"run2"}

    async def test_an_event_is_blamed_on_its_run_and_a_nodes_fact_on_the_node(
        self, store: Store
    ) -> None:
        event = msgspec.structs.replace(an_event("run1"), at=None)
        node = msgspec.structs.replace(a_node("wrong"), created_at=None)

        with pytest.raises(StoreRefused) as caught:
            await store.commit(
                Changes(nodes={"sound": a_node("sound"), "wrong": node}, events=(event,))
            )
        assert caught.value.runs == {"run1"}
        assert caught.value.nodes == {"wrong"}
        assert (await store.load()).nodes == ()
