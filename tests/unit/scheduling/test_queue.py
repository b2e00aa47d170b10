"""docs/rules.md 6: who comes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.lifecycle.model import Band, RunPolicy, Use
from controller.scheduling.fair_share import HALF_LIFE, UseMeter
from tests.unit.scheduling.cluster import Cluster, gpu_node
from tests.unit.scheduling.parts import gang

DAY = HALF_LIFE


def spent(user: str, gpus: int, start: float, end: float | None, cpu: float = 1.0) -> Use:
    return Use(user=user, gpus=gpus, cpu=cpu, start=start, end=end)


def meter(*uses: Use) -> UseMeter:
    made = UseMeter()
    for use in uses:
        made.add(use)
    return made


def test_use_halves_in_a_day() -> None:
    use = meter(spent("ada", 8, 0.0, 60.0))
    now, later = use.used("ada", 60.0)[0], use.used("ada", 60.0 + DAY)[0]
    assert (now, later) == (480, 240)


def test_use_that_is_still_going_counts_up_to_now() -> None:
    use = meter(spent("ada", 8, 0.0, None))
    assert (use.used("ada", 100.0)[0], use.used("ada", 200.0)[0]) == (800, 1599)


def test_use_of_years_ago_is_nothing_and_breaks_nothing() -> None:
    use = meter(spent("ada", 8, 0.0, 60.0), spent("bob", 1, 0.0, None))
    years = 5 * 365 * DAY
    assert use.used("ada", years) == (0, 0)
    assert use.used("bob", years)[0] == round(DAY * 1.4426950408889634)


def test_a_clock_that_goes_back_by_decades_breaks_nothing_and_keeps_the_order() -> None:
    later = 40 * 365 * DAY
    use = meter(
        spent("ada", 8, later, later + 60.0),
        spent("bob", 1, later, later + 60.0),
        spent("eve", 1, later, None),
        spent("joe", 4, later, 0.0),
    )
    ada, bob, eve, joe = (use.used(user, 0.0) for user in ("ada", "bob", "eve", "joe"))
    assert ada > bob > eve == joe == (0, 0)
    use.add(spent("joe", 4, 0.0, 60.0))
    use.take_away(spent("joe", 4, 0.0, 60.0))
    assert use.used("ada", later + 60.0)[0] == 480


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.floats(0, 9 * DAY), st.floats(0, DAY) | st.none()),
        min_size=1,
    )
)
def test_use_that_is_added_and_taken_away_again_leaves_the_rest(
    spans: list[tuple[int, float, float | None]],
) -> None:
    uses = [spent("ada", g, s, None if d is None else s + d) for g, s, d in spans]
    both = meter(*uses, *uses)
    for use in reversed(uses):
        both.take_away(use)
    now = 10 * DAY
    expected = meter(*uses).used("ada", now)
    found = both.used("ada", now)
    assert all(abs(one - other) <= 1 for one, other in zip(found, expected, strict=True))


def first_placed(cluster: Cluster, *runs: str) -> str:
    cluster.settle()
    (placed,) = (run for run in runs if cluster.places(run))
    return cluster.states[placed].run.name


def busy(*users: str) -> Cluster:
    """One node, and each of these users had it for an hour already."""
    cluster = Cluster(gpu_node("n1"))
    for user in users:
        cluster.pipeline.index.use.add(spent(user, 8, 0.0, 3600.0))
    cluster.now = 3600.0
    return cluster


def test_the_user_who_used_least_goes_first_whatever_the_priority() -> None:
    cluster = busy("ada")
    runs = [
        cluster.submit("hers", user="ada", gpus=8, policy=RunPolicy(priority=100)),
        cluster.submit("his", user="bob", gpus=8, policy=RunPolicy(priority=0)),
    ]
    assert first_placed(cluster, *runs) == "his"


def test_the_band_comes_before_the_use() -> None:
    cluster = busy("ada")
    runs = [
        cluster.submit("his", user="bob", gpus=8),
        cluster.submit("hers", user="ada", gpus=8, band=Band.PRODUCTION),
    ]
    assert first_placed(cluster, *runs) == "hers"


def test_a_gang_goes_first_among_equals_but_not_before_a_higher_priority() -> None:
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    solo = cluster.submit("solo", whole_node=True)
    gangs = cluster.submit("gang", gang(2), whole_node=True)
    assert first_placed(cluster, solo, gangs) == "gang"
    cluster = Cluster(gpu_node("n1"), gpu_node("n2"))
    solo = cluster.submit("solo", whole_node=True, policy=RunPolicy(priority=51))
    gangs = cluster.submit("gang", gang(2), whole_node=True)
    assert first_placed(cluster, solo, gangs) == "solo"


def test_a_runs_use_counts_for_its_user() -> None:
    cluster = Cluster(gpu_node("n1"))
    cluster.submit("one", user="ada", gpus=4)
    cluster.settle()
    cluster.now += 60.0
    assert cluster.pipeline.index.use.used("ada", cluster.now) == (240, 60)
