"""TensorBoard and Weights & Biases loggers, checked with their own readers."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_train import PARTS, PENDULUM, stop_in_the_third_update, train_part

import jaxtrpo
from jaxtrpo.runs.checkpoint import load_checkpoint, save_checkpoint
from jaxtrpo.runs.directory import METRICS_FILE, TENSORBOARD, WANDB_FILE, OutputError
from jaxtrpo.runs.loggers import WeightsAndBiases
from jaxtrpo.runs.termination import Interrupted, Terminated
from jaxtrpo.training import options
from jaxtrpo.training.train import prepare
from jaxtrpo.training.update import gather

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(tensorboard|wandb|google)"),
    pytest.mark.shared_programs,
]


def events(out, name: str) -> tuple[list[int], list[float]]:
    """Steps and values of a scalar, as read by TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(out / TENSORBOARD), purge_orphaned_data=True)
    found.Reload()
    return [each.step for each in found.Scalars(name)], [each.value for each in found.Scalars(name)]


def assert_logged(out, result) -> None:
    """Each update once, with its number."""
    steps, values = events(out, "train/kl")
    np.testing.assert_array_equal(steps, result.metrics["env_steps"])
    np.testing.assert_allclose(values, result.metrics["kl"], rtol=1e-6)


def records(path: Path) -> Iterator[bytes]:
    """Records of a W&B file: LevelDB's log format in blocks of 32 KiB, after a header of seven bytes."""
    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32_768 - place % 32_768 < 7:
            place += 32_768 - place % 32_768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a complete record, or the last part of one
            yield whole
            whole = b""


def history(out) -> list[dict[str, float]]:
    """Rows of all W&B files of a run, in order."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for path in sorted(out.glob("wandb/offline-run-*/*.wandb")):
        for data in records(path):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
    return rows


def test_tensorboard_receives_every_number(tmp_path):
    result = train_part(tmp_path, total_steps=320, tensorboard=True)
    assert_logged(tmp_path, result)
    returns = result.metrics["eval_return"]
    steps, values = events(tmp_path, "eval/eval_return")  # blanks are not logged
    np.testing.assert_array_equal(steps, result.metrics["env_steps"][np.isfinite(returns)])


def test_tags_of_tensorboard_are_grouped(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train_part(tmp_path, total_steps=320, tensorboard=True)
    found = EventAccumulator(str(tmp_path / TENSORBOARD))
    found.Reload()
    tags = {tag.partition("/")[2]: tag.partition("/")[0] for tag in found.Tags()["scalars"]}
    assert set(tags) == {name for name, values in result.metrics.items() if np.isfinite(values).any()}
    wanted = {
        "return_100": "rollout", "episodes": "rollout", "eval_return": "eval", "wall_seconds": "time",
        "env_steps": "time", "learn_seconds": "time", "kl": "train", "max_kl": "train", "steps_per_update": "train",
    }  # fmt: skip
    assert {name: tags[name] for name in wanted} == wanted and set(tags.values()) == set(wanted.values())


def test_resumed_run_purges_events_after_the_checkpoint(tmp_path):
    whole = train_part(tmp_path / "whole", total_steps=640)
    out = tmp_path / "run"
    train_part(out, total_steps=192, tensorboard=True)
    early = tmp_path / "early"
    shutil.copytree(out, early)
    train_part(out, total_steps=384, tensorboard=True, resume=True)
    for file in (early).iterdir():  # as if the process had been killed before the later checkpoints
        if file.is_file():
            shutil.copy(file, out / file.name)
    train_part(out, total_steps=640, tensorboard=True, resume=True)
    assert_logged(out, whole)


def test_wandb_receives_every_number_and_resumes_the_same_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train_part(tmp_path, total_steps=192, wandb="jaxtrpo-tests")
    name = (tmp_path / WANDB_FILE).read_text()
    result = train_part(tmp_path, total_steps=384, wandb="jaxtrpo-tests", resume=True)
    assert (tmp_path / WANDB_FILE).read_text() == name
    assert all(name.strip() in path.name for path in tmp_path.glob("wandb/offline-run-*"))
    rows = history(tmp_path)
    np.testing.assert_array_equal([row["env_steps"] for row in rows], result.metrics["env_steps"])
    np.testing.assert_allclose([row["kl"] for row in rows], result.metrics["kl"])


def test_run_that_is_resumed_from_before_its_first_update_purges_all_events(tmp_path):
    out = tmp_path / "run"
    whole = train_part(out, total_steps=320, tensorboard=True)
    again = prepare(PENDULUM, **{**PARTS, "actors": 1, "total_steps": 320})
    save_checkpoint(out, PENDULUM, again.config, {}, gather(again.state))  # as a process leaves it that is killed
    train_part(out, total_steps=320, tensorboard=True, resume=True)
    assert_logged(out, whole)


def test_runs_of_one_process_are_runs_of_wandb(tmp_path, monkeypatch):
    """Of two seeds side by side, while the caller has a run, too."""
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    own = wandb.init(project="mine", dir=tmp_path)
    settings = {**PARTS, "total_steps": 96, "eval_every": 0}
    found = jaxtrpo.train_many(
        PENDULUM, seeds=(1, 2, 3), out=tmp_path / "many", wandb="jaxtrpo-tests", progress=False, **settings
    )
    own.log({"mine": 1})
    own.finish()
    places = [tmp_path / "many" / f"seed-{seed}" for seed in (1, 2, 3)]
    assert len({(place / WANDB_FILE).read_text() for place in places} | {own.id}) == 4
    for place, result in zip(places, found, strict=True):
        np.testing.assert_allclose([row["kl"] for row in history(place)], result.metrics["kl"])


def test_logger_that_cannot_start_is_reported_in_one_sentence(tmp_path, monkeypatch):
    def init(**_):
        raise RuntimeError("api_key not configured\n(no-tty): call wandb login")

    monkeypatch.setattr("wandb.init", init)
    said = r"^wandb='mine' cannot be used: api_key not configured \(no-tty\): call wandb login"
    with pytest.raises(OutputError, match=said + r"; resume=True \(--resume\) then begins the run, which is saved$"):
        train_part(tmp_path, total_steps=64, wandb="mine")
    monkeypatch.undo()
    assert train_part(tmp_path, total_steps=64, resume=True).metrics["update"][0] == 1
    with pytest.raises(OutputError, match=said + "$"), monkeypatch.context() as patch:
        patch.setattr("wandb.init", init)
        train_part(None, total_steps=64, wandb="mine")


@pytest.mark.parametrize("given", [False, True])
def test_wandb_run_has_group_and_tags(given, tmp_path, monkeypatch):
    asked = {}

    def init(**arguments):
        asked.update(arguments)
        return SimpleNamespace(id="one", define_metric=lambda *words, **more: None)

    monkeypatch.setattr("wandb.init", init)
    for name, value in (("WANDB_RUN_GROUP", "mine"), ("WANDB_TAGS", "first,second")):
        monkeypatch.setenv(name, value) if given else monkeypatch.delenv(name, raising=False)
    algorithm = f"ppo(clip=0.1, learning_rate={'1' * 200})"
    WeightsAndBiases("project", tmp_path, "seed-0", {"env": "Hopper-v5", "algorithm": algorithm})
    assert asked["tags"] == [*(["first", "second"] if given else []), "Hopper-v5", "ppo"]
    assert asked["group"] == "mine" if given else asked["group"].startswith("Hopper-v5, ppo(clip=0.1")
    assert len(asked["group"]) <= 128 and asked["name"] == "seed-0" and asked["config"]["algorithm"] == algorithm


def test_failed_run_leaves_complete_events(tmp_path):
    run = prepare(PENDULUM, out=tmp_path, total_steps=640, tensorboard=True, **PARTS)
    with pytest.raises(RuntimeError, match="out of luck"):
        stop_in_the_third_update(run, RuntimeError("out of luck")).run(progress=False)
    assert len(events(tmp_path, "train/kl")[0]) == 2


def test_overwrite_replaces_events(tmp_path):
    train_part(tmp_path, total_steps=192, tensorboard=True)
    result = train_part(tmp_path, total_steps=96, tensorboard=True, overwrite=True)
    np.testing.assert_array_equal(events(tmp_path, "train/kl")[0], result.metrics["env_steps"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"tensorboard": True}, "tensorboard=True needs out"),
        ({"tensorboard": 1}, "tensorboard=1"),
        ({"wandb": ""}, "wandb='' must be the name of a project"),
        ({"wandb": True}, "wandb=True must be the name of a project"),
    ],
)
def test_bad_logger_settings_are_reported_first(arguments, told):
    with pytest.raises(ValueError, match=told):
        prepare("Nothing-v0", **arguments)


def test_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for arguments, package in (({"tensorboard": True, "out": tmp_path}, "tensorboardX"), ({"wandb": "mine"}, "wandb")):
        with pytest.raises(ValueError, match=f"needs the package {package}: pip install {package}"):
            prepare("Nothing-v0", **arguments)


class Failing:
    """A logger that cannot end."""

    def __init__(self, *arguments):
        pass

    def add(self, rows):
        pass

    def close(self):
        raise OSError("no connection")


def test_everything_is_saved_before_loggers_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(options, "TensorBoard", Failing)
    with pytest.raises(OSError, match="no connection"):
        train_part(tmp_path, total_steps=320, tensorboard=True, checkpoint_seconds=1e6)
    saved = load_checkpoint(tmp_path).metrics["env_steps"]
    assert saved[-1] >= 320 and len(saved) == (tmp_path / METRICS_FILE).read_text().count("\n") - 1


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, Interrupted)])
def test_signal_while_loggers_start_ends_in_order(number, raised, tmp_path, monkeypatch):
    """Connecting to a server may take a minute."""

    class Connecting(Failing):
        def __init__(self, *arguments):
            signal.raise_signal(number)

    monkeypatch.setattr(options, "TensorBoard", Connecting)
    with pytest.raises(raised) as error:
        train_part(tmp_path, total_steps=320, tensorboard=True)
    if raised is Interrupted:
        assert not len(error.value.result.metrics["env_steps"])
    assert load_checkpoint(tmp_path).metrics == {}
    assert train_part(tmp_path, total_steps=64, resume=True).metrics["env_steps"][-1] >= 64
