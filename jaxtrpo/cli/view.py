"""Commands that show runs: `jaxtrpo plot`, `video`, `report` and `watch`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from jaxtrpo.cli.command import Work, find_modules_here, needs, require_place, require_some
from jaxtrpo.config.checks import expanded, require_positive, require_seed, require_whole
from jaxtrpo.runs.view.opengl import choose_opengl

MOST_PIXELS = 8_192  # of a side; what H.264 encodes
PAGE_SUFFIXES = (".html", ".htm")


@dataclasses.dataclass(frozen=True)
class Video:
    """Render an episode of the deterministic policy as a video, several runs or snapshots side by side."""

    directories: Positional[Annotated[tuple[Path, ...], arg(metavar="DIR...")]]
    """directories of runs or snapshots"""
    out: Path = Path("video.mp4")
    """MP4 file to write"""
    gif: FlagCreatePairsOff[bool] = False
    """also write a GIF with the same name"""
    seconds: float | None = None
    """length of the video in simulated seconds; if not given, the whole episode"""
    seed: int = 0
    """random seed of the initial state"""
    width: int = 480
    """width of each episode in pixels; environments of Gymnasium have a fixed size"""
    height: int = 360
    """height in pixels"""
    env: str | None = None
    """environment; if not given, the one each policy was trained in"""
    env_options: str | None = None
    """options of the environment's constructor; if not given, those of each training run, or none with another --env"""
    policy: str | None = None
    """network of your own that the policies were trained with, such as my_module:MyPolicy"""
    max_episode_steps: int | None = None
    """time limit in environment steps; if not given, that of the training run, or that of --env itself.
    Without a time limit, episodes are stopped after 10,000 steps"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        require_whole(16, MOST_PIXELS, width=self.width, height=self.height)
        require_seed(seed=self.seed)
        if self.width % 2 or self.height % 2:
            raise ValueError(f"width={self.width}, height={self.height} must be even numbers")
        if self.seconds is not None:
            require_positive(seconds=self.seconds)
        if self.out.suffix != ".mp4":
            raise ValueError(f"out={str(self.out)!r} must end with .mp4")
        require_some(self.directories)
        require_place(self.out)
        if self.gif:
            require_place(self.out.with_suffix(".gif"))
        find_modules_here(self.env)
        unable = None
        try:
            choose_opengl()  # before anything imports MuJoCo
        except OSError as error:  # Gymnasium's own environments may draw otherwise
            unable = error
        try:
            from jaxtrpo.runs.view.video import write_video
        except ModuleNotFoundError as error:
            raise needs("video", error, "view") from error
        from jaxtrpo.cli.own_parts import network
        from jaxtrpo.envs.abilities import Watchable, has
        from jaxtrpo.envs.base import most_steps
        from jaxtrpo.envs.registry import make_env
        from jaxtrpo.parallel.devices import choose_actors
        from jaxtrpo.rollout.evaluation import require_fitting, where_to_act
        from jaxtrpo.rollout.rendering import first_seconds, render_episode
        from jaxtrpo.runs.policy_file import load_policy
        from jaxtrpo.runs.progress import Progress

        choose_actors(1, program=True)  # the environment may be a JAX program
        own = network(self.policy)
        episodes, most = {}, 0
        for label, place in _labels(self.directories).items():
            policy = load_policy(place, policy=own)
            where, limit, options = where_to_act(policy, self.env, self.max_episode_steps, self.env_options)
            env = make_env(where, max_episode_steps=limit, **options)
            require_fitting(policy, env)
            if unable is not None and not has(env, Watchable):
                raise unable
            episode = render_episode(policy, env, seed=self.seed, width=self.width, height=self.height)
            episodes[label] = episode if self.seconds is None else first_seconds(episode, self.seconds)
            whole = most_steps(env) + 1  # with the end
            shown = whole if self.seconds is None else max(1, round(self.seconds / episode.seconds_per_step))
            most += min(shown, whole)

        def work() -> int:
            with Progress(most, unit="frames") as bar:
                bar.status("rendering")
                counted = {label: each._replace(frames=bar.count(each.frames)) for label, each in episodes.items()}
                files = write_video(counted, expanded(self.out), gif=self.gif)
            for path in files:
                print(path)
            return 0

        return work


def _labels(places: Sequence[Path]) -> dict[str, Path]:
    """Returns a unique label for each directory: its name, with as many parent directories as needed."""
    parts = [place.absolute().parts for place in places]
    for number in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(each[-number:]) for each in parts]
        if len(set(labels)) == len(set(places)):
            return dict(zip(labels, places, strict=True))
    return {str(place): place for place in places}


@dataclasses.dataclass(frozen=True)
class Plot:
    """Plot learning curves: interquartile means over seeds with 95 % bootstrap intervals."""

    directories: Positional[Annotated[tuple[Path, ...], arg(metavar="DIR...")]]
    """directories of runs, or directories that contain runs; runs that differ only by their seed form one curve"""
    out: Path = Path("curves")
    """path of the files without suffix: curves.png, curves.svg and curves.csv"""
    x: Literal["env_steps", "update", "wall_seconds"] = "env_steps"
    """horizontal axis: environment steps, updates or wall-clock seconds"""
    y: str = "return_100"
    """vertical axis: a column of metrics.csv"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        require_some(self.directories)
        if not self.out.name:
            raise ValueError(f"out={str(self.out)!r} must name files, such as curves for curves.png")
        for kind in ("png", "svg", "csv"):
            require_place(self.out.with_name(f"{self.out.name}.{kind}"))
        try:
            from jaxtrpo.runs.view.plot import curves_of, draw
        except ModuleNotFoundError as error:
            raise needs("plot", error, "view") from error
        from jaxtrpo.runs.reader import find_runs, read_run

        curves = curves_of([read_run(place) for place in find_runs(self.directories)], self.x, self.y)

        def work() -> int:
            for path in draw(curves, expanded(self.out), x=self.x, y=self.y):
                print(path)
            return 0

        return work


@dataclasses.dataclass(frozen=True)
class Report:
    """Write a self-contained HTML report about runs."""

    directories: Positional[Annotated[tuple[Path, ...], arg(metavar="DIR...")]]
    """directories of runs, or directories that contain runs"""
    out: Path = Path("report.html")
    """HTML file to write"""
    video: Path | None = None
    """MP4 file to embed, such as one from `jaxtrpo video`"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        require_some(self.directories)
        require_place(self.out)
        if self.out.suffix not in PAGE_SUFFIXES:
            raise ValueError(f"out={str(self.out)!r} must end with {' or '.join(PAGE_SUFFIXES)}")
        video = self.video and expanded(self.video)
        if video and not video.is_file():
            raise FileNotFoundError(f"video={str(self.video)!r}: no such file")
        if video and not _is_mp4(video):
            raise ValueError(f"video={str(self.video)!r} is not an MP4 file; `jaxtrpo video` writes one")
        try:
            from jaxtrpo.runs.view.report import write_report
        except ModuleNotFoundError as error:
            raise needs("report", error, "view") from error
        from jaxtrpo.runs.reader import find_runs, read_run

        runs = [read_run(place) for place in find_runs(self.directories)]

        def work() -> int:
            write_report(runs, expanded(self.out), video=video)
            print(self.out)
            return 0

        return work


def _is_mp4(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8)[4:] == b"ftyp"


@dataclasses.dataclass(frozen=True)
class Watch:
    """Serve a live report about runs on this machine, also while they are training."""

    directories: Positional[Annotated[tuple[Path, ...], arg(metavar="DIR...")]]
    """directories of runs, or directories that contain runs now or later"""
    port: int = 0
    """port on the loopback address; 0 picks a free one"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        require_some(self.directories)
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port={self.port} must be between 0 and 65535")
        try:
            from jaxtrpo.runs.view.watch import address, serve
        except ModuleNotFoundError as error:
            raise needs("watch", error, "view") from error
        from jaxtrpo.runs.reader import require_directory

        places = [require_directory(place) for place in self.directories]
        try:
            server = serve(places, self.port)
        except OSError as error:
            raise OSError(f"port={self.port} cannot be used: {error.strerror}") from error

        def work() -> int:
            print(f"{address(server)} (stop with Ctrl-C)", flush=True)
            with server:
                try:
                    server.serve_forever()
                except KeyboardInterrupt:
                    print(file=sys.stderr)
            return 0

        return work
