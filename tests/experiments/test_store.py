"""Runs of the experiments are found again, whatever settings there are since."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def family():
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        from common import family, store

        return family, store.Store(store.RESULTS / "algorithms")
    finally:
        sys.path.remove(str(EXPERIMENTS))


def test_every_run_of_the_comparison_of_algorithms_is_in_the_tables(family):
    family, store = family
    tasks = (*family.GYMNASIUM, *family.MUJOCO)
    cases = [(env, name, seed) for env in tasks for name in family.ALL for seed in family.seeds_of(env, name)]
    assert len(cases) > 250
    assert [case for case in cases if store.find(family.job(*case)) is None] == []
