"""Plot of the results of a sweep."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from optuna.trial import FrozenTrial

from jaxtrpo.runs.directory import write_whole, writing
from jaxtrpo.runs.sweep.space import Dimension, Interval, Values
from jaxtrpo.runs.sweep.study import SEEDS

PICTURE = "sweep.png"


def draw_sweep(trials: Sequence[FrozenTrial], dimensions: Sequence[Dimension], directory: Path) -> Path:
    """Writes sweep.png: for each setting, the score of every trial with its seeds in grey and the best trial marked."""
    figure = Figure(figsize=(max(4.0 * len(dimensions), 5.0), 3.4), layout="constrained")
    places = figure.subplots(1, len(dimensions), squeeze=False, sharey=True)[0]
    for place, dimension in zip(places, dimensions, strict=True):
        if isinstance(dimension, Values):  # side by side, in the order in which they were given
            place.set_xticks(range(len(dimension.values)), map(str, dimension.values))
        for rank, trial in enumerate(trials):
            value = trial.params[dimension.name]
            x = dimension.values.index(value) if isinstance(dimension, Values) else value
            for score in trial.user_attrs.get(SEEDS, []):
                place.plot([x], [score], "o", color="#bbbbbb", markersize=3)
            place.plot(
                [x], [trial.value], "o", color="#d55e00" if rank == 0 else "#0072b2", markersize=7 if rank == 0 else 5
            )
        if isinstance(dimension, Interval) and dimension.log:
            place.set_xscale("log")
        place.set_xlabel(dimension.name)
        place.grid(alpha=0.3)
    places[0].set_ylabel("return_100, interquartile mean")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    with writing(directory, advice=""):
        write_whole(directory / PICTURE, picture.getvalue())
    return directory / PICTURE
