"""The pictures of the documentation, of runs that other experiments have made.

    python experiments/pictures.py

Lines are medians over seeds, bands their quartiles. Written to docs/pictures/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytorch_baseline
from matplotlib.axes import Axes

from common import methods
from common.family import MUJOCO, OF_ALL, job, seeds_of
from common.grid import TASKS
from common.methods import with_best_fixed
from common.plots import AXIS_NAMES, colors_of, common_legend, panels, save
from common.runs import load_all
from common.statistics import on_grid
from common.store import RESULTS, Curve, Job
from common.tables import read_lines

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
# Of those against the clock: what each is called there.
AGAINST_PYTORCH = {
    "jaxtrpo": "jaxtrpo, as it comes",
    "design of 2016": "design of 2016, in Python",
    "sb3-contrib, equal settings": "sb3-contrib, equal settings",
    "sb3-contrib, its defaults": "sb3-contrib, its defaults",
    "Tianshou over EnvPool": "Tianshou over EnvPool",
}
TRUST_REGION, OTHERS = ("trpo", "npg", "trpo_penalty"), ("ppo", "a2c", "a3c", "pg")
Panel = Mapping[str, Sequence[Curve]]  # label -> seeds


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    draw("clock", "Return against seconds since the command", against_pytorch(), "wall_seconds")
    draw("million", "One million steps", {env: million(env) for env in MUJOCO})
    for name, algorithms in (("trust_region", TRUST_REGION), ("others", OTHERS)):
        family = {env: {each: runs_of(env, each) for each in algorithms} for env in OF_ALL[:4]}
        draw(name, "One million steps", family)
    draw("adapting", "What adapting brings", {env: adapting(env) for env in TASKS})


def draw(name: str, title: str, panes: Mapping[str, Panel], axis: str = "env_steps") -> None:
    """Three panels a row."""
    wide = min(3, len(panes)) if len(panes) != 4 else 4
    figure, axes = panels(-(-len(panes) // wide), wide, f"{title}; medians over seeds, quartiles shaded")
    colors = colors_of(label for pane in panes.values() for label in pane)
    for place, (env, pane) in zip(axes.flat, panes.items(), strict=False):
        draw_medians(place, pane, colors, env, axis)
    for place in axes.flat[len(panes) :]:
        place.axis("off")
    common_legend(figure)
    save(figure, PICTURES / f"{name}.png")


def draw_medians(place: Axes, pane: Panel, colors: Mapping[str, str], title: str, axis: str) -> None:
    for label, runs in pane.items():
        grid, values = on_grid(runs, axis)
        begun = grid >= max(run[axis][0] for run in runs)  # before, nothing has been measured
        grid, values = grid[begun], values[:, begun]
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
        place.plot(grid, middle, color=colors[label], label=label)
        place.fill_between(grid, low, high, color=colors[label], alpha=0.2, linewidth=0)
    words = "seconds since the command" if axis == "wall_seconds" else AXIS_NAMES[axis]
    place.set(
        title=title,
        xlabel=words,
        ylabel="mean return of an episode",
        xscale="log" if axis == "wall_seconds" else "linear",
    )
    place.grid(alpha=0.3)


def runs_of(env: str, algorithm: str) -> list[Curve]:
    return load_all((job(env, algorithm, seed) for seed in seeds_of(env, algorithm)), made_by="algorithms.py")


def million(env: str) -> dict[str, list[Curve]]:
    usual = job(env, "trpo", 0).settings
    replayed = [Job(env, seed, {**usual, "algorithm": "trpo_replay"}) for seed in range(5)]
    return {
        **{name: runs_of(env, name) for name in ("trpo", "ppo")},
        "trpo_replay": load_all(replayed, made_by="replay.py"),
    }


def adapting(env: str) -> dict[str, list[Curve]]:
    known = with_best_fixed(env, quick=False)
    return {
        label: load_all((Job(env, seed, known[label]) for seed in methods.SEEDS), made_by="adaptation.py")
        for label in (methods.TRUST, methods.BOTH_OF_2016, methods.BEST_FIXED)
    }


def against_pytorch() -> dict[str, dict[str, list[Curve]]]:
    """Trainings of pytorch_baseline.py as curves."""
    lines = read_lines(RESULTS / "pytorch_baseline" / pytorch_baseline.TRAININGS)
    found: dict[str, dict[str, list[Curve]]] = {}
    for env in pytorch_baseline.TASKS:
        for system, label in AGAINST_PYTORCH.items():
            made = [each["curve"] for each in lines if (each["env"], each["system"]) == (env, system)]
            steps = (np.array(curve).T for curve in made)
            found.setdefault(env, {})[label] = [
                {"env_steps": each[0], "wall_seconds": each[1], "mean_return": each[2]} for each in steps
            ]
    return found


if __name__ == "__main__":
    main()
