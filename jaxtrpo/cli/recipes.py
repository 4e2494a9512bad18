"""`jaxtrpo recipes`."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from jaxtrpo.cli.command import Work, as_flags
from jaxtrpo.config import USUAL_ALGORITHM

if TYPE_CHECKING:
    from jaxtrpo.runs.recipes import Recipe


@dataclasses.dataclass(frozen=True)
class Recipes:
    """List the settings tuned for single environments, which `jaxtrpo train ENV --recipe` uses."""

    env: Positional[Annotated[str | None, arg(metavar="ENV")]] = None
    """show only the recipe for this environment, with the command that it stands for"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        from jaxtrpo.runs.recipes import recipe_for, recipes

        text = _table(list(recipes().values())) if self.env is None else _described(recipe_for(self.env))

        def show() -> int:
            print(text)
            return 0

        return show


def _table(found: list[Recipe]) -> str:
    rows = [(each.env, _algorithm(each).partition("(")[0], each.settings["total_steps"], _mean(each)) for each in found]
    width = max(len(env) for env, *_ in rows)
    head = f"{'environment':{width}}  {'algorithm':11}  {'total steps':>11}  mean return"
    lines = [f"{env:{width}}  {algorithm:11}  {steps:>11,}  {mean}" for env, algorithm, steps, mean in rows]
    return "\n".join([head, *lines])


def _described(recipe: Recipe) -> str:
    command = shlex.join(["jaxtrpo", "train", recipe.env, *as_flags(recipe.settings)])
    each = ", ".join(f"{value:.4g} (seed {seed})" for seed, value in zip(recipe.seeds, recipe.returns, strict=True))
    return f"{command}\n\nmean return {_mean(recipe)}, deterministic policy, 100 episodes a seed: {each}"


def _algorithm(recipe: Recipe) -> str:
    return recipe.settings.get("algorithm", USUAL_ALGORITHM)


def _mean(recipe: Recipe) -> str:
    if len(recipe.returns) == 1:
        return f"{recipe.mean:.4g}"
    spread = statistics.stdev(recipe.returns)
    return f"{recipe.mean:.4g} ± {spread:{'.2g' if spread < 100 else '.0f'}}"
