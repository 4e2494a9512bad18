"""Runs of the experiments are found again, whatever settings there are since."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def store(experiments):
    from common.store import RESULTS, Store

    return Store(RESULTS / "any")


def test_every_run_of_the_comparison_of_algorithms_is_in_the_tables(store):
    from common import family

    tasks = (*family.GYMNASIUM, *family.MUJOCO)
    cases = [(env, name, seed) for env in tasks for name in family.ALL for seed in family.seeds_of(env, name)]
    assert len(cases) > 250
    assert [case for case in cases if store.find(family.job(*case)) is None] == []


def jobs_of_sweep():
    from common import grid
    from common.store import Job

    return [Job(env, seed, of) for env in grid.TASKS for of in grid.combinations().values() for seed in grid.SEEDS]


def jobs_of_benchmark():
    import benchmark_1m

    from common.store import Job

    every = {"eval_every": 20_000}
    return [
        Job(env, seed, {**every, **benchmark_1m.DEFAULTS.get(env, {})})
        for env in benchmark_1m.PUBLISHED
        for seed in benchmark_1m.SEEDS
    ]


def jobs_of_simulators():
    import simulators

    from common.store import Job

    return [
        Job(env, seed, simulators.settings(algorithm, number))
        for env in simulators.TASKS
        for algorithm in simulators.ALGORITHMS
        for number in simulators.SIMULATORS
        for seed in simulators.SEEDS
    ]


def jobs_of_headline():
    import headline

    from common.store import Job

    return [
        Job(env, 0, {**method, **headline.TASKS[env]}) for env in headline.TASKS for method in headline.METHODS.values()
    ]


@pytest.mark.parametrize("jobs", [jobs_of_sweep, jobs_of_benchmark, jobs_of_simulators, jobs_of_headline])
def test_runs_of_other_experiments_are_in_the_tables(jobs, store):
    assert [job for job in jobs() if store.find(job) is None] == []


def test_runs_of_an_experiment_come_before_those_of_others(tmp_path):
    from common.store import Store

    job, stores = jobs_of_simulators()[0], {name: tmp_path / name for name in ("first", "second")}
    for steps, folder in enumerate(stores.values(), start=7):
        folder.mkdir()
        Store(folder).add(job, [{"env_steps": str(steps), "update": "0"}])
    found = [Store(folder).find(job)["env_steps"].tolist() for folder in stores.values()]
    assert found == [[7], [8]]
