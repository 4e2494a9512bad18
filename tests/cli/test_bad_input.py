"""Invalid command lines: each is reported in one line and changes no files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from test_plot import make_run
from test_policy_file import make_policy

import jaxtrpo
from jaxtrpo.cli import main as cli
from jaxtrpo.runs.directory import METRICS_FILE

# Command lines, and a part of their error message. Failures of the machine are tested in test_output.py, test_sweep.py
# and test_report.py, errors reported by tyro in test_cli.py.
TABLE = [
    # training and evaluating
    ("train X --steps-per-update 0", "steps_per_update=0"),
    ("train X --num-envs 3 --actors 2", "num_envs=3"),
    ("train X --steps-per-update 15", "steps_per_update=15"),
    ("train X --steps-per-update 64 --segment-length 16", "steps_per_update=64"),
    ("train X --actors 1000", "actors=1000"),
    ("train X --adapt mragin", "did you mean margin?"),
    ("train X --adapt margin(window=0)", "window=0"),
    ("train X --algorithm pop", "did you mean ppo"),
    ("train X --algorithm ppo(clip=0)", "clip=0"),
    ("train X --algorithm ppo(cilp=0.1)", "did you mean clip?"),
    ("train X --policy mpl", "did you mean mlp?"),
    ("train X --critic mlp(epochs=0)", "epochs=0"),
    ("train X --critic ridge", "mlp or linear or none"),
    ("train InvertedPendulum-v5 --algorithm ppo --max-kl 0.1", "ppo has no max_kl"),
    ("train InvertedPendulum-v5 --algorithm ppo --adapt trust", "adapt=trust"),
    (
        "train InvertedPendulum-v5 --adapt model_accuracy",
        "adapt=model_accuracy reads previous_predicted_gain",
    ),
    ("train InvertedPendulum-v5 --algorithm a2c --critic linear", "needs a network as critic"),
    ("train InvertedPendulum-v5 --device gpu", "runs on CPU cores"),
    ("train InvertedPendulum-v5 --processes 2", "processes=2, but no launcher was found: use `jaxtrpo launch"),
    ("launch --processes 2 -- evaluate POLICY", "expected `-- train ...`, not `evaluate`"),
    ("train mjx:HalfChetah-v5", "HalfCheetah-v5"),
    ("train Halfcheetah", "HalfCheetah-v5"),
    ("train Hopper-v5 --backend spring", "--backend is for environments of Brax (brax:NAME), not for Hopper-v5"),
    ("evaluate POLICY --env CartPole-v1 --backend spring", "(brax:NAME), not for CartPole-v1"),
    ("train CartPole-v7 --recipe", "recipe: there is none for 'CartPole-v7'; the nearest are for CartPole-v1"),
    ("train mine:make --recipe", "`jaxtrpo recipes` lists all"),
    ("train CartPole-v1 --recipe --config HELD", "--recipe and --config contradict each other"),
    ("recipes CartPole-v7", "recipe: there is none for 'CartPole-v7'"),
    ("train X --out HELD", "--overwrite"),
    ("train X --out HELD --resume", "checkpoint.msgpack"),
    ("train InvertedPendulum-v5 --out HELD --resume --overwrite", "contradict each other"),
    ("train X --out HELD/metrics.csv", "not a directory"),
    ("train X --out=", "--out is empty"),
    ("train X --steps-per-update 99999999999999", "steps_per_update=99999999999999 must be at most 2147483647"),
    ("train X --num-envs 100000000", "num_envs=100000000 must be at most 1048576"),
    ("train InvertedPendulum-v5 --steps-per-update 2000000000", "max_steps_per_update=2000000000 need at least"),
    ("train InvertedPendulum-v5 --policy mlp(hidden=(1000000,1000000))", "policy=mlp(hidden=(1000000, 1000000))"),
    ("train InvertedPendulum-v5 --critic mlp(hidden=(1000000,1000000))", "critic=mlp(hidden=(1000000, 1000000)) need"),
    ("train X --algorithm ppo(epochs=3000000000)", "epochs=3000000000 must be at most"),
    ("train X --algorithm trpo(cg_iterations=99999999999)", "cg_iterations=99999999999 must be at most"),
    ("train X --algorithm ppo(clip=0.1,clip=0.3)", "ppo is given clip twice"),
    ("train X --algorithm ppo(learning_rate=1e300)", "learning_rate=1e+300 must be between"),
    ("train X --algorithm trpo_replay(replay_ratio=1e30)", "replay_ratio=1e+30 must be positive and at most 1000"),
    ("train X --algorithm gps(window=1000000000)", "window=1000000000 must be at most 1000"),
    ("train X --adapt trust(settle_steps=100000000000000000000)", "settle_steps=100000000000000000000 must be at most"),
    ("train X --max-kl 1e308", "max_kl=1e+308 must be between"),
    ("train X --max-kl 1e-320", "max_kl=1e-320 must be between"),
    ("train X --eval-every 100 --eval-episodes 100000000", "eval_episodes=100000000 must be at most 1000000"),
    ("evaluate POLICY --seed 100000000000000000000", "seed=100000000000000000000 must be at most 4294967295"),
    ("evaluate POLICY --env InvertedPendulum-v5 --episodes 100000000", "episodes=100000000 must be at most 1000000"),
    ("video POLICY --width 1000000", "width=1000000 must be at most 8192"),
    ("video POLICY --seed 100000000000000000000", "seed=100000000000000000000 must be at most 4294967295"),
    ("launch --processes 1000 -- train X", "processes=1000 must be at most"),
    ("evaluate MISSING", "MISSING"),
    ("evaluate .", "policy.msgpack"),
    ("evaluate POLICY --env Nothing-v0", "Nothing-v0"),
    ("evaluate POLICY --env HalfCheetah-v5", "those of HalfCheetah-v5 have sizes 17 and 6"),
    ("evaluate POLICY --env InvertedPendulum-v5 --episodes 0", "episodes=0"),
    ("sweep X --out s --grid actors=1,2", "actors cannot be swept: every run of a sweep has one actor"),
    ("sweep X --out s --grid seed=1,2", "seed cannot be swept"),
    ("sweep X --out s --grid discount=0.9,0.99 --actors 2", "actors=2: every run of a sweep has one actor"),
    # curves
    ("plot", "at least one run"),
    ("plot RUN --y returns", "returns is not a column of"),
    ("plot RUN --out nowhere/curves", "no such directory: nowhere"),
    ("plot NONE", "no such directory"),
    ("plot BLANK", "return_100 has no value in any of the runs"),
    # videos
    ("video", "at least one run"),
    ("video NONE", "no such directory: NONE"),
    ("video EMPTY", "no policy.msgpack in EMPTY"),
    ("video POLE --width 0", "width=0"),
    ("video POLE --width 33", "even numbers"),
    ("video POLE --out video.avi", "must end with .mp4"),
    ("video POLE --out nowhere/video.mp4", "no such directory: nowhere"),
    ("video POLE --env HalfCheetah-v5", "those of HalfCheetah-v5 have sizes 17 and 6"),
    ("video POLE --env Nothing-v0", "Nothing-v0"),
    # reports
    ("report", "at least one run"),
    ("report NONE", "no such directory"),
    ("report RUN --out nowhere/page.html", "no such directory: nowhere"),
    ("report RUN --video video.mp4", "video='video.mp4': no such file"),
    ("video POLICY --seconds 0", "seconds=0"),
    ("watch", "at least one run"),
    ("watch NONE", "no such directory"),
    ("watch RUN --port 70000", "port=70000"),
    # exports
    ("export NONE", "no such directory: NONE"),
    ("export EMPTY", "no policy.msgpack in EMPTY"),
    ("export POLICY --out POLICY/policy.msgpack", "is not a directory"),
    ("export POLICY --card --episodes 0", "episodes=0"),
    ("export POLICY --card --max-episode-steps 0", "max_episode_steps=0"),
    ("export POLICY --env Hopper-v5", "env='Hopper-v5' is for the evaluation of the model card; add --card"),
    ("export POLICY --max-episode-steps 5", "max_episode_steps=5 is for the evaluation"),
    ("evaluate POLICY --max-episode-steps 0", "max_episode_steps=0"),
    ("train X --max-episode-steps 0", "max_episode_steps=0"),
    # sweeps
    ("sweep Hopper-v5", "at least one setting"),
    ("sweep Hopper-v5 --grid max_kl=-1,2", "max_kl=-1"),
    ("sweep Hopper-v5 --grid max_kl=0.1 --seeds 0", "seeds=0"),
    ("sweep Hopper-v5 --grid max_kl=0.1 --trials 0", "trials=0"),
    ("sweep Hopper-v5 --grid critic_learning_rat=0.1", "did you mean learning_rate?"),
    ("sweep Hopper-v5 --grid adapt=trsut", "did you mean trust"),
    ("sweep Hopper-v5 --random log(discount,0.5,2)", "discount=2.0"),
    ("sweep Hopper-v5 --grid max_kl=0.1 --storage nothing://x", "storage='nothing://x' cannot be used"),
    # snapshots, repeated runs and loggers
    ("train X --checkpoint-seconds -1", "checkpoint_seconds=-1.0"),
    ("train X --keep-every -1", "keep_every=-1"),
    ("train X --keep-best", "keep_best=True needs eval_every"),
    ("train X --wandb=", "--wandb is empty"),
    ("train --config NONE", "no such file: NONE"),
    ("train --config EMPTY", "no such file: EMPTY/config.json"),
    ("train --config HELD/metrics.csv", "is not a config.json"),
    ("train X --total-steps 0", "total_steps=0"),
    ("train X --seed -1", "seed=-1"),
    ("train X --discount 1.5", "discount=1.5"),
    ("train X --eval-episodes 0", "eval_episodes=0"),
    ("train X --max-kl 0", "max_kl=0"),
    ("train X --algorithm trpo_replay(replay=0)", "replay=0"),
    ("train X --algorithm gps(samples=1)", "samples=1"),
    ("train InvertedPendulum-v5 --actors 1 --algorithm gps --num-envs 4", "num_envs=4 is less than conditions=8"),
    ("train Reacher-v5 --actors 1 --algorithm gps(horizon=60)", "horizon=60"),
    ("train X --policy mlp(hidden=(0,))", "hidden=0"),
    ("train brax:nothing", "brax:"),
    ("train gymnasium:Nothing-v0", "Nothing-v0"),
    # places that cannot be written to, and sizes without sense
    ("train X --out /proc/x", "out='/proc/x': no file can be created in /proc"),
    ("train X --seeds 1000000000", "seeds=1000000000 must be at most 10000"),
    ("export POLICY --out /proc/x", "out='/proc/x': no file can be created in /proc"),
    ("plot RUN --out /proc/x", "out='/proc/x.png': no file can be created in /proc"),
    ("plot RUN --out .", "out='.' must name files"),
    ("report RUN --out /proc/x", "out='/proc/x': no file can be created in /proc"),
    ("report RUN --out RUN", "out='RUN' is a directory"),
    ("report RUN --out page.py", "out='page.py' must end with .html or .htm"),
    ("report RUN --video RUN/metrics.csv", "video='RUN/metrics.csv' is not an MP4 file"),
    ("video POLE --out /proc/x.mp4", "out='/proc/x.mp4': no file can be created in /proc"),
    ("sweep CartPole-v1 --out /proc/x --grid max_kl=0.1", "out='/proc/x': no file can be created in /proc"),
    ("sweep Nothing-v0 --out new --grid max_kl=0.1", "unknown environment 'Nothing-v0'"),
    ("sweep mjx:Nothing-v0 --out new --grid max_kl=0.1", "unknown environment 'mjx:Nothing-v0'"),
    ("sweep X --out new --grid max_kl=0.1 --cores 1000000000", "cores=1000000000 must be at most"),
    ("sweep X --out new --grid max_kl=0.1 --seeds 1000000000", "seeds=1000000000 must be at most 10000"),
    ("train counting_env:Careless-v0", "reset() raised AssertionError: assert self.where != here ("),
    ("evaluate HELD", "no policy.msgpack in HELD"),
]


def directories() -> None:
    """Creates the directories that the table refers to."""
    for name in ("HELD", "EMPTY", "POLICY", "POLE"):
        Path(name).mkdir()
    Path("HELD", METRICS_FILE).write_text("precious")
    policy = make_policy(action_size=1)
    jaxtrpo.save_policy("POLICY", policy)
    jaxtrpo.save_policy("POLE", dataclasses.replace(policy, env_name="InvertedPendulum-v5"))
    make_run(Path("RUN"))
    make_run(Path("BLANK"), updates=1)


@pytest.mark.parametrize(("words", "told"), TABLE)
def test_invalid_input_is_reported_in_one_line_and_changes_nothing(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUJOCO_GL", "egl")  # skips the trial of backends
    directories()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    out = ["--out", "new"] if words.startswith("train") and "--out" not in words else []
    assert cli.main([*words.split(), *out]) == cli.INPUT_ERROR
    error = capsys.readouterr().err
    assert error.startswith("jaxtrpo: error: ") and error.count("\n") == 1 and told in error
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "sweep" not in path.parts}
    assert after == before and not Path("new").exists()


@pytest.mark.parametrize("storage", ["sqlite:////proc/x.db", "sqlite:///HELD/metrics.csv"])
def test_storage_that_cannot_be_opened_is_refused_at_once(storage, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    directories()
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("tried again"))
    words = ["sweep", "CartPole-v1", "--out", "sweep", "--grid", "max_kl=0.1", "--storage", storage]
    assert cli.main(words) == cli.INPUT_ERROR
    assert f"storage='{storage}' cannot be used" in capsys.readouterr().err


def test_policy_that_does_not_fit_a_task_of_mjx_is_refused_before_mjx_is_traced(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    directories()
    monkeypatch.setattr("jaxtrpo.envs.mujoco.mjx.MjxEngine", lambda *_: pytest.fail("traced"))
    assert cli.main(["evaluate", "POLICY", "--env", "mjx:HalfCheetah-v5"]) == cli.INPUT_ERROR
    assert "those of HalfCheetah-v5 have sizes 17 and 6" in capsys.readouterr().err


def test_table_has_many_distinct_cases():
    assert len(TABLE) >= 60 and len({words for words, _ in TABLE}) == len(TABLE)
