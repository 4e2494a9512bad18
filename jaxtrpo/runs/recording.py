"""Files of recorded episodes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from jaxtrpo.rollout.episodes import Recording
from jaxtrpo.runs.directory import write_whole, writing


def write_recording(path: Path, recording: Recording) -> None:
    """Writes an .npz file with an array for each field of a recording.

    Raises:
      OutputError: the file cannot be written.
    """
    content = io.BytesIO()
    np.savez_compressed(content, **recording._asdict())
    with writing(path.parent, advice=""):
        write_whole(path, content.getvalue())
