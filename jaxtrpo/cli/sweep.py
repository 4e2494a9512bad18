"""`jaxtrpo sweep`."""

from __future__ import annotations

import dataclasses
import functools
import math
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction, arg

from jaxtrpo.cli.command import FAILED, INTERRUPTED, Work, as_flags, find_modules_here, needs
from jaxtrpo.config import USUAL_ALGORITHM, Config
from jaxtrpo.config.checks import MOST_SEEDS, expanded, require_whole
from jaxtrpo.config.environment import made_elsewhere, options_of
from jaxtrpo.parallel.machine import PROCESSES_PER_CORE, available_cores
from jaxtrpo.runs.directory import hold, require_writable
from jaxtrpo.runs.sweep.space import (
    ONE_ACTOR,
    Values,
    combinations,
    parse_grid,
    parse_random,
    require_different,
    with_settings,
)

SHOWN = 10  # trials in the printed table
MOST_COMBINATIONS = 100_000  # of a grid


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Search over settings, with several seeds per trial and one run per core; the same command resumes it."""

    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """environment, as for `jaxtrpo train`"""
    config: Annotated[Config, arg(name="")] = dataclasses.field(default_factory=Config)
    grid: UseAppendAction[tuple[str, ...]] = ()
    """values of a setting, such as max_kl=0.005,0.01; several settings are tried in all combinations"""
    random: UseAppendAction[tuple[str, ...]] = ()
    """distribution of a setting: "log(critic_learning_rate, 1e-4, 1e-2)", uniform(...), integer(...) or
    choice(NAME, VALUE, ...)"""
    tpe: FlagCreatePairsOff[bool] = False
    """sample with TPE (tree-structured Parzen estimator), guided by earlier trials, instead of at random"""
    trials: int | None = None
    """number of trials; if not given, all combinations of a grid search, else 20"""
    seeds: int = 5
    """seeds per trial, from 0; the score of a trial is their interquartile mean"""
    out: Path = Path("sweep")
    """directory for the runs, the table sweep.csv and the plot sweep.png"""
    storage: str | None = None
    """URL of a database, such as postgresql://..., that lets several machines share the sweep;
    if not given, study.sqlite in the directory --out"""
    cores: int | None = None
    """runs at a time, one per core; if not given, all cores"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        find_modules_here(self.env)
        grid, drawn = parse_grid(self.grid), parse_random(self.random)
        dimensions = [*grid, *drawn]
        require_different(dimensions)
        if self.config.actors not in (None, 1):
            raise ValueError(f"actors={self.config.actors}: {ONE_ACTOR}")
        require_whole(1, MOST_SEEDS, seeds=self.seeds)
        if self.trials is not None:
            require_whole(1, trials=self.trials)
        if self.cores is not None:
            require_whole(1, PROCESSES_PER_CORE * available_cores(), cores=self.cores)
        number = math.prod(len(each.values) for each in grid if isinstance(each, Values))
        if number > MOST_COMBINATIONS:
            raise ValueError(f"grid: {number:,} combinations are too many; sample some with --random choice(NAME, ...)")
        every = [] if drawn or self.tpe else list(combinations([each for each in grid if isinstance(each, Values)]))
        if every and self.trials is not None and self.trials > len(every):
            raise ValueError(f"trials={self.trials}: the grid has only {len(every)} combinations")
        self._require_valid(dimensions)
        for chosen in every[: self.trials]:  # values that are valid by themselves may contradict each other
            Config(**self._settings(chosen))
        out = expanded(self.out).absolute()
        require_writable(out, f"out={str(self.out)!r}")
        self._require_known()
        try:
            from jaxtrpo.runs.sweep.plot import draw_sweep
            from jaxtrpo.runs.sweep.scheduler import run_sweep
            from jaxtrpo.runs.sweep.study import Sweep as Plan
            from jaxtrpo.runs.sweep.study import open_study, ranked, require_same_sweep, unfinished, write_table
            from jaxtrpo.runs.termination import EXIT_CODE, Termination, termination_as_interrupt
        except ModuleNotFoundError as error:
            raise needs("sweep", error, "sweep") from error

        with hold(out):  # creates it
            pass
        study = open_study(out, self.env, self.storage)
        require_same_sweep(study, dimensions, shlex.join(_changed_flags(vars(self.config))), self.seeds)
        trials = self.trials or (len(every) if every else 20)
        plan = Plan(
            env=self.env,
            directory=out,
            dimensions=dimensions,
            combinations=every[:trials],
            trials=trials,
            seeds=self.seeds,
            flags=self._flags,
            study=study,
            shared=self.storage is not None,
            tpe=self.tpe,
            seed=self.config.seed,
        )

        def work() -> int:
            try:
                with hold(out), termination_as_interrupt():
                    failed = run_sweep(plan, self.cores or available_cores())
            except KeyboardInterrupt as interrupt:
                print(f"interrupted; the same command resumes the sweep in {out}", file=sys.stderr)
                return EXIT_CODE if isinstance(interrupt, Termination) else INTERRUPTED
            if failed:
                trials = "1 trial" if failed == 1 else f"{failed} trials"
                print(f"{trials} failed; the same command tries again", file=sys.stderr)
            if others := unfinished(study):
                running = "1 trial runs" if others == 1 else f"{others} trials run"
                print(f"{running} elsewhere, or were killed there, and are not counted", file=sys.stderr)
            done = ranked(study)
            if not done:
                print("no trial was completed", file=sys.stderr)
                return FAILED
            files = write_table(study, out), draw_sweep(done, dimensions, out)
            self._report(done, files)
            return FAILED if failed else 0

        return work

    def _require_known(self) -> None:
        from jaxtrpo.envs.registry import require_known

        if not made_elsewhere(options_of(self.config.env_options)):
            require_known(self.env)

    def _settings(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings of a trial.

        The algorithm is always one of them: by default it would depend on the others, and trials of two algorithms
        would be compared as if they differed in what is searched.
        """
        from jaxtrpo.cli.own_parts import part
        from jaxtrpo.policies.custom import policy_maker
        from jaxtrpo.training.parts import IMAGE_NETWORK, usual_critic, with_image_critic

        config = dataclasses.asdict(self.config)
        if "algorithm" not in chosen:
            config["algorithm"] = config["algorithm"] or USUAL_ALGORITHM

        def default(kind: str) -> str:
            algorithm = part("algorithm", chosen.get("algorithm", config["algorithm"]))
            usual_policy = IMAGE_NETWORK if kind != "adapt" and self._observes_images else algorithm.policy
            if kind == "policy":
                return usual_policy
            if kind != "critic":
                return getattr(algorithm, kind)
            others = {name: value for name, value in chosen.items() if not name.startswith("critic_")}
            policy = policy_maker(part("policy", with_settings(config, others, default)["policy"] or usual_policy))
            return usual_critic(algorithm, with_image_critic(policy) if self._observes_images else policy)

        return with_settings(config, chosen, default)

    @functools.cached_property
    def _observes_images(self) -> bool:
        """Whether observations have images, for which policy and critic have another default."""
        import jax

        from jaxtrpo.envs.abilities import close, observation_space
        from jaxtrpo.envs.registry import make_env

        jax.config.update("jax_platforms", "cpu")  # accelerators are for the runs, which are other processes
        limit, options = self.config.max_episode_steps, options_of(self.config.env_options)
        env = make_env(self.env, max_episode_steps=limit, **options)
        try:
            return bool(observation_space(env).images)
        finally:
            close(env)

    def _require_valid(self, dimensions: list) -> None:
        """Validates each value of each setting, combined with the first values of the others."""
        from jaxtrpo.cli.own_parts import part

        usual = {each.name: each.examples[0] for each in dimensions}
        for each in dimensions:
            for value in each.examples:
                settings = self._settings({**usual, each.name: value})
                Config(**settings)
                for kind in ("algorithm", "policy", "critic", "adapt"):
                    if settings[kind] is not None:
                        part(kind, settings[kind])

    def _flags(self, chosen: Mapping[str, Any]) -> list[str]:
        return _changed_flags(vars(Config(**self._settings(chosen))))  # which makes 1000 of 1000.0

    def _report(self, done: list, files: tuple[Path, ...]) -> None:
        from jaxtrpo.runs.sweep.scheduler import format_settings

        print(f"{'trial':>5}  {'return_100':>10}  settings")
        for trial in done[:SHOWN]:
            print(f"{trial.number:>5}  {trial.value:>10.1f}  {format_settings(trial.params)}")
        print(*files, sep="\n")
        best = shlex.join(
            ["jaxtrpo", "train", self.env, *self._flags(done[0].params), "--actors", "1", "--out", "best"]
        )
        print(f"rerun the best trial: {best}")


def _changed_flags(settings: Mapping[str, Any]) -> list[str]:
    """Returns the flags of `jaxtrpo train` for the settings of a trial that differ from their defaults."""
    usual = vars(Config())
    return as_flags(
        {name: value for name, value in settings.items() if value != usual[name] and name not in ("seed", "actors")}
    )
