"""Videos of episodes. MuJoCo renders in separate processes, each with its own OpenGL backend."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit
from light_env import LightEnvironment
from PIL import Image

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.envs import base
from jaxtrpo.envs.mujoco.environment import MujocoEnvironment
from jaxtrpo.envs.mujoco.tasks import TASKS
from jaxtrpo.envs.registry import make_env
from jaxtrpo.rollout.rendering import Frame, RenderedEpisode, first_seconds, render_episode
from jaxtrpo.runs.directory import OutputError
from jaxtrpo.runs.policy_file import save_policy
from jaxtrpo.runs.view import opengl, video
from jaxtrpo.runs.view.video import _Player, write_video

PENDULUM = "InvertedPendulum-v5"


@functools.cache
def can_draw() -> bool:
    program = "from jaxtrpo.runs.view.opengl import choose_opengl; choose_opengl()"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def require_drawing() -> None:
    if not can_draw() and "CI" not in os.environ:
        pytest.skip("neither EGL nor OSMesa works here")


@functools.cache
def policy_for(env: str):
    return jaxtrpo.train(env, total_steps=1, steps_per_update=16, num_envs=1, actors=1, progress=False).policy


def saved(place: Path, env: str = PENDULUM) -> Path:
    place.mkdir(parents=True)
    save_policy(place, policy_for(env))
    return place


def frames_of(path: Path) -> tuple[list[np.ndarray], Fraction]:
    with av.open(str(path)) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)], file.streams.video[0].average_rate


class FakeRenderer(MujocoEnvironment):
    """Renders constant images without OpenGL."""

    def render(self, physics, width, height):
        for state in physics:
            assert state.dtype == np.uint32 and state.ndim == 1
            yield np.full((height, width, 3), len(state), np.uint8)


# ---- rendering


def test_rendering_shows_the_evaluated_episode():
    env, policy = FakeRenderer(TASKS[PENDULUM]()), policy_for(PENDULUM)
    found = render_episode(policy, env, seed=3, width=32, height=16)
    frames = list(found.frames)
    whole = jaxtrpo.evaluate(policy, env, episodes=1, seed=3)
    # The state after the last step belongs to the next episode, so the one before is shown once more.
    assert [frame.total for frame in frames[:-1]] == list(range(len(frames) - 1))
    assert frames[-1].total == whole.mean
    assert frames[0].picture.shape == (16, 32, 3) and found.seconds_per_step == pytest.approx(0.04)


def test_rendering_without_time_limit_is_as_long_as_an_evaluation(monkeypatch):
    task = TASKS[PENDULUM]()._replace(episode_length=base.NO_TIME_LIMIT, terminated=lambda model, data: False)
    monkeypatch.setattr(base, "MOST_STEPS_WITHOUT_LIMIT", 5)
    assert len(list(render_episode(policy_for(PENDULUM), FakeRenderer(task), width=32, height=16).frames)) == 6


def test_environment_without_renderer_is_rejected():
    with pytest.raises(ValueError, match="^light cannot be rendered$"):
        render_episode(policy_for(PENDULUM), LightEnvironment())


def test_episode_of_a_policy_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="but those of Hopper-v5 have sizes 11 and 3"):
        render_episode(policy_for(PENDULUM), "Hopper-v5")


def test_environment_to_draw_may_be_named_or_that_of_training():
    """Its simulators are closed with the last frame."""
    policy, closed = policy_for("CartPole-v1"), []

    class Drawn(CartPoleEnv):
        def close(self):
            closed.append(self)
            super().close()

    wanted = [frame.picture for frame in render_episode(policy, make_env("CartPole-v1"), seed=4).frames]
    for env in (None, "CartPole-v1", lambda: TimeLimit(Drawn(render_mode="rgb_array"), 500)):
        found = [frame.picture for frame in render_episode(policy, env, seed=4).frames]
        np.testing.assert_array_equal(found, wanted)
    assert closed


# ---- video files


def fake_episode(number: int, seconds_per_step: float, size=(32, 48)) -> RenderedEpisode:
    """Renders frame i in the grey level 2 i."""
    return RenderedEpisode(
        (Frame(np.full((*size, 3), 2 * i, np.uint8), float(i)) for i in range(number)), seconds_per_step
    )


def greys(frames, columns) -> list[int]:
    return [round(float(frame[-4:, columns].mean()) / 2) for frame in frames]


def test_episodes_play_in_simulated_time_and_wait_for_the_longest(tmp_path):
    path = tmp_path / "two.mp4"
    assert write_video({"slow": fake_episode(100, 0.1), "fast": fake_episode(60, 0.05)}, path) == [path]
    frames, fps = frames_of(path)
    assert fps == 20 and len(frames) == 200 and frames[0].shape == (32, 96, 3)
    slow, fast = greys(frames, slice(0, 48)), greys(frames, slice(48, 96))
    np.testing.assert_allclose(slow[:190], np.arange(190) // 2, atol=2)
    np.testing.assert_allclose(fast[:58], np.arange(58), atol=2)
    np.testing.assert_allclose(fast[70:], 59 / 2, atol=2)  # dimmed after its end


def test_pictures_of_different_heights_are_aligned_at_the_top(tmp_path):
    episodes = {"low": fake_episode(60, 0.05, (32, 48)), "high": fake_episode(60, 0.05, (64, 32))}
    write_video(episodes, tmp_path / "two.mp4")
    frames, _ = frames_of(tmp_path / "two.mp4")
    assert frames[0].shape == (64, 80, 3)
    np.testing.assert_allclose(frames[40][24:30, :46].mean(), 80, atol=4)
    assert frames[40][34:, :46].mean() < 4 and frames[40][40:, 50:].mean() > 70


def test_frame_rate_is_capped(tmp_path):
    write_video({"one": fake_episode(100, 0.005)}, tmp_path / "one.mp4")
    frames, fps = frames_of(tmp_path / "one.mp4")
    assert fps == 50 and len(frames) == 26
    np.testing.assert_allclose(greys(frames, slice(None)), [*range(0, 100, 4), 99], atol=2)  # with the end


@pytest.mark.parametrize("number", [21, 22, 23, 24, 25, 26])
@pytest.mark.parametrize("seconds_per_step", [0.008, 0.015, 0.04])
def test_last_frame_of_an_episode_is_shown(number, seconds_per_step):
    """Whichever frames before it are left out."""
    player = _Player("one", fake_episode(number, seconds_per_step), 50)
    shown = []
    while not player.over:
        player.next()
        shown.append(player._last.total)
    assert shown[-2] == number - 1  # the last call only finds that it is over


def test_beginning_has_the_requested_length():
    assert len(list(first_seconds(fake_episode(20, 0.05), 0.5).frames)) == 10
    assert len(list(first_seconds(fake_episode(20, 0.05), 0.001).frames)) == 1
    assert len(list(first_seconds(fake_episode(5, 0.05), 9).frames)) == 5


def test_gif_has_the_same_duration(tmp_path):
    files = write_video({"one": fake_episode(90, 0.02)}, tmp_path / "one.mp4", gif=True)
    assert [file.name for file in files] == ["one.mp4", "one.gif"]
    with Image.open(files[1]) as gif:
        shown = []
        for number in range(gif.n_frames):
            gif.seek(number)
            shown.append(gif.info["duration"])
        assert gif.info["loop"] == 0
    assert sum(shown) == pytest.approx(90 * 20 + 1000, abs=61)  # it pauses at the end


def test_odd_sizes_are_cropped_for_the_codec(tmp_path):
    write_video({"odd": fake_episode(5, 0.1, size=(33, 47))}, tmp_path / "odd.mp4")
    assert frames_of(tmp_path / "odd.mp4")[0][0].shape == (32, 46, 3)


def test_failed_rendering_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "one.mp4"
    path.write_text("old")

    def broken():
        yield Frame(np.zeros((32, 32, 3), np.uint8), 0.0)
        raise RuntimeError("torn")

    with pytest.raises(RuntimeError, match="torn"):
        write_video({"one": RenderedEpisode(broken(), 0.1)}, path, gif=True)
    assert [file.name for file in tmp_path.iterdir()] == ["one.mp4"] and path.read_text() == "old"


def test_missing_directory_is_reported_in_one_sentence(tmp_path):
    with pytest.raises(OutputError, match=r"out='.*one\.mp4' cannot be written to: No such file or directory$"):
        write_video({"one": fake_episode(3, 0.1)}, tmp_path / "nowhere" / "one.mp4")


# ---- OpenGL


@pytest.fixture
def nothing_chosen(monkeypatch):
    """Unsets MUJOCO_GL, and restores it after the test."""
    monkeypatch.setenv("MUJOCO_GL", "egl")  # monkeypatch only restores a variable that it has set or deleted
    monkeypatch.delenv("MUJOCO_GL")


@pytest.mark.usefixtures("nothing_chosen")
def test_working_backend_is_chosen_unless_the_user_chose_one(monkeypatch):
    monkeypatch.setattr(opengl, "_works", lambda name: name == "osmesa")
    assert opengl.choose_opengl() == "osmesa" == os.environ["MUJOCO_GL"]
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert opengl.choose_opengl() == "glfw"


@pytest.mark.usefixtures("nothing_chosen")
def test_error_without_backend_names_the_packages(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(opengl, "_works", lambda name: False)
    assert cli.main(["video", str(saved(tmp_path / "run"))]) == cli.INPUT_ERROR
    error = capsys.readouterr().err
    assert "apt-get install libegl1" in error and error.count("\n") == 1


@pytest.mark.usefixtures("nothing_chosen")
def test_environment_that_draws_itself_needs_no_backend(monkeypatch, tmp_path):
    monkeypatch.setattr(opengl, "_works", lambda name: False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert cli.main(["video", str(saved(tmp_path / "run", "CartPole-v1")), "--out", str(tmp_path / "cart.mp4")]) == 0
    assert (tmp_path / "cart.mp4").exists()


@pytest.mark.usefixtures("nothing_chosen")
def test_backend_that_kills_its_process_does_not_count(monkeypatch):
    monkeypatch.setattr(opengl, "TRIAL", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(OSError, match="neither EGL nor OSMesa works"):
        opengl.choose_opengl()


# ---- the command


def command(*words, **how) -> subprocess.CompletedProcess:
    whole = [sys.executable, "-m", "jaxtrpo", "video", *words]
    return subprocess.run(whole, capture_output=True, text=True, timeout=300, check=False, **how)


def test_runs_are_rendered_side_by_side(tmp_path):
    require_drawing()
    runs = [saved(tmp_path / name / "run") for name in ("one", "two")]
    out = tmp_path / "both.mp4"
    done = command(*map(str, runs), "--out", str(out), "--width", "96", "--height", "64", "--gif")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(out), str(out.with_suffix(".gif"))]
    assert done.stderr.startswith("rendering\n") and " frames (" in done.stderr.splitlines()[-1]
    frames, fps = frames_of(out)
    assert fps == 25 and frames[0].shape == (64, 192, 3) and frames[0].std() > 5
    np.testing.assert_allclose(frames[0][30:, :96], frames[0][30:, 96:], atol=25)  # they start in the same state


def test_killed_renderer_leaves_the_old_video_and_its_temporary_file_is_removed_later(tmp_path):
    require_drawing()
    run, out = saved(tmp_path / "run", "HalfCheetah-v5"), tmp_path / "one.mp4"
    out.write_text("old")
    words = [sys.executable, "-m", "jaxtrpo", "video", str(run), "--out", str(out), "--width", "480"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".one.*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    assert list(tmp_path.glob(".one.*")) and out.read_text() == "old"
    done = command(str(saved(tmp_path / "short")), "--out", str(out), "--width", "96", "--height", "64")
    assert done.returncode == 0, done.stderr
    assert len(frames_of(out)[0]) > 2 and not list(tmp_path.glob(".one.*"))


def test_files_beside_a_video_are_kept_and_so_is_one_that_is_being_written(tmp_path):
    out = tmp_path / "one.mp4"
    mine = [tmp_path / name for name in (".one.backup.mp4", ".one.mp4.backup.mp4", ".one.mp4.abcdefgh.gif")]
    left = tmp_path / ".one.mp4.abcdef_0.mp4"
    for file in (*mine, left):
        file.touch()
    episode = render_episode(policy_for(PENDULUM), FakeRenderer(TASKS[PENDULUM]()), seed=3, width=32, height=16)
    with video._unfinished(out) as written:
        write_video({"run": episode}, out)
        assert written.exists()
    assert sorted(tmp_path.iterdir()) == sorted([*mine, out])


def test_gif_that_cannot_be_written_is_refused_before_rendering(tmp_path):
    (tmp_path / "one.gif").mkdir()
    done = command(str(saved(tmp_path / "run")), "--gif", "--out", str(tmp_path / "one.mp4"))
    assert done.returncode == 2 and "one.gif' is a directory; give the name of a file" in done.stderr
    assert not (tmp_path / "one.mp4").exists()


def test_gymnasium_environments_use_their_own_renderer(tmp_path):
    out = tmp_path / "cart.mp4"
    environment = {**os.environ, "SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}
    done = command(str(saved(tmp_path / "run", "CartPole-v1")), "--out", str(out), env=environment)
    assert done.returncode == 0, done.stderr
    frames, fps = frames_of(out)
    assert fps == 50 and frames[0].shape == (400, 600, 3) and 5 <= len(frames) <= 501


def test_last_picture_of_a_gymnasium_environment_is_the_end_with_the_whole_return():
    frames = list(render_episode(policy_for("CartPole-v1"), make_env("CartPole-v1"), seed=4).frames)
    assert [frame.total for frame in frames] == list(range(len(frames)))
    assert not np.array_equal(frames[-1].picture, frames[-2].picture)
