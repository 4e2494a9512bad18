"""Runs of the experiments are found again, whatever settings there are since."""

from __future__ import annotations


def test_every_run_of_the_comparison_of_algorithms_is_in_the_tables():
    from common import family
    from common.store import RESULTS, Store

    store, tasks = Store(RESULTS / "algorithms"), (*family.GYMNASIUM, *family.MUJOCO)
    cases = [(env, name, seed) for env in tasks for name in family.ALL for seed in family.seeds_of(env, name)]
    assert len(cases) > 250
    assert [case for case in cases if store.find(family.job(*case)) is None] == []
