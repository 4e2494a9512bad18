"""Writing rendered episodes as video files."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from jaxtrpo.rollout.rendering import Frame, RenderedEpisode
from jaxtrpo.runs.directory import left_unfinished, writing

MAX_FPS = 50
GIF_FPS, GIF_COLORS = 20, 64

Timed = tuple[float, Image.Image]  # (seconds, image shown from then on)


def write_video(episodes: Mapping[str, RenderedEpisode], path: Path, *, gif: bool = False) -> list[Path]:
    """Writes episodes side by side in simulated time; those that end early stay, dimmed, until the last one ends.

    Args:
      episodes: rendered episodes by label.
      path: path of the MP4 file.
      gif: also write a GIF with the same name.

    Returns:
      The paths of the files.

    Raises:
      OutputError: the files cannot be written.
    """
    fps = Fraction(min(max(1 / each.seconds_per_step for each in episodes.values()), MAX_FPS)).limit_denominator(1000)
    files = [path, *([path.with_suffix(".gif")] if gif else [])]
    with writing(path, advice=""), ExitStack() as stack:
        for file in files:
            for left in left_unfinished(file, file.suffix):
                _remove_if_left(left)
        unfinished = [stack.enter_context(_unfinished(file)) for file in files]
        for_gif = _write_mp4(unfinished[0], _side_by_side(episodes, float(fps)), fps, keep=gif)
        if gif:
            _write_gif(unfinished[1], for_gif)
        for file, done in zip(unfinished, files, strict=True):
            os.replace(file, done)
    return files


def _write_mp4(path: Path, pictures: Iterator[np.ndarray], fps: Fraction, *, keep: bool) -> list[Timed]:
    """Writes the MP4 file; if `keep`, returns the images of the GIF."""
    for_gif: list[Timed] = []
    with av.open(str(path), "w", options={"movflags": "faststart"}) as file:
        stream = file.add_stream("libx264", rate=fps, options={"crf": "20"})
        stream.pix_fmt = "yuv420p"  # supported by all browsers
        for number, picture in enumerate(pictures):
            height, width = (size // 2 * 2 for size in picture.shape[:2])  # H.264 requires even sizes
            if number == 0:
                stream.height, stream.width = height, width
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture[:height, :width]))
            file.mux(stream.encode(frame))
            seconds = float(number / fps)
            if keep and (not for_gif or seconds >= for_gif[-1][0] + 1 / GIF_FPS - 1e-9):
                for_gif.append((seconds, Image.fromarray(picture).quantize(GIF_COLORS, dither=Image.Dither.NONE)))
        file.mux(stream.encode())
    return for_gif


def _write_gif(path: Path, pictures: list[Timed]) -> None:
    times = [seconds for seconds, _ in pictures]
    shown = [round(1000 * (later - now)) for now, later in pairwise([*times, times[-1] + 1.0])]  # milliseconds
    first, *others = [picture for _, picture in pictures]
    first.save(path, format="GIF", save_all=True, append_images=others, duration=shown, loop=0)


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """Yields a temporary file beside a path, locked as long as this process writes it, and removes what is left."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.chmod(name, 0o644)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
        os.close(descriptor)


def _remove_if_left(file: Path) -> None:
    """Removes a temporary file, unless another process is writing it."""
    with suppress(BlockingIOError, FileNotFoundError), file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.unlink(missing_ok=True)


def _side_by_side(episodes: Mapping[str, RenderedEpisode], fps: float) -> Iterator[np.ndarray]:
    """Yields frames of the video until all episodes are over."""
    players = [_Player(label, each, fps) for label, each in episodes.items()]
    while True:
        shown = [player.next() for player in players]
        if all(player.over for player in players):
            return
        height = max(map(len, shown))
        yield np.concatenate([np.pad(each, [(0, height - len(each)), (0, 0), (0, 0)]) for each in shown], axis=1)


class _Player:
    """Plays an episode at the frame rate of the video."""

    def __init__(self, label: str, episode: RenderedEpisode, fps: float):
        self.over = self._ended = False
        self._label, self._episode, self._steps_per_frame = label, episode, 1 / (fps * episode.seconds_per_step)
        self._number, self._made = 0, 0
        self._last: Frame = next(episode.frames)

    def next(self) -> np.ndarray:
        """Returns the next frame, or the last one if the episode is over."""
        wanted = int(self._number * self._steps_per_frame + 1e-6)
        self._number += 1
        before = self._last
        while self._made < wanted and not self._ended:
            found = next(self._episode.frames, None)
            self._ended = found is None
            self._last = self._last if found is None else found
            self._made += 1
        self.over = self._ended and self._last is before  # once its last frame has been shown
        return _with_label(self._last.picture, f"{self._label}   {self._last.total:,.0f}", faded=self.over)


def _with_label(picture: np.ndarray, label: str, *, faded: bool) -> np.ndarray:
    image = Image.fromarray(picture // 2 if faded else picture)
    size = max(12, image.height // 22)
    draw, font = ImageDraw.Draw(image, "RGBA"), ImageFont.load_default(size)
    left, top, right, bottom = draw.textbbox((size // 2, size // 2), label, font=font)
    draw.rectangle((left - 4, top - 4, right + 4, bottom + 4), fill=(0, 0, 0, 130))
    draw.text((size // 2, size // 2), label, font=font, fill="white")
    return np.asarray(image)
