"""The command line, and the public names of the package."""

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys

import numpy as np
import pytest

import jaxtrpo
import jaxtrpo.algorithms
from jaxtrpo import config
from jaxtrpo.cli import main as cli
from jaxtrpo.config import Config
from jaxtrpo.config.specs import KINDS
from jaxtrpo.runs.config_file import save_config
from jaxtrpo.runs.termination import Interrupted

# For each setting a value that is not its default, as typed and as parsed.
SETTINGS = {
    "total_steps": ("5000", 5000),
    "seed": ("3", 3),
    "algorithm": ("ppo(clip=0.1,epochs=4)", "ppo(clip=0.1,epochs=4)"),
    "policy": ("mlp(hidden=(7,))", "mlp(hidden=(7,))"),
    "critic": ("linear", "linear"),
    "adapt": ("margin(window=5)", "margin(window=5)"),
    "max_kl": ("0.02", 0.02),
    "steps_per_update": ("512", 512),
    "max_steps_per_update": ("4096", 4096),
    "discount": ("0.9", 0.9),
    "normalize_observations": (None, False),
    "frame_stack": ("4", 4),
    "noise_correlation": ("0.5", 0.5),
    "select": ("last", "last"),
    "actors": ("1", 1),
    "device": ("cpu", "cpu"),
    "processes": ("1", 1),
    "num_envs": ("8", 8),
    "segment_length": ("4", 4),
    "max_episode_steps": ("30", 30),
    "env_options": ("a=1,b='x'", "a=1, b='x'"),
    "log_info": ("success,x", "success,x"),
    "eval_every": ("10000", 10000),
    "eval_episodes": ("3", 3),
    "start_from": ("runs/one", "runs/one"),
    "stop_at_return": ("1000", 1000.0),
    "stop_after_evaluations": ("5", 5),
    "stop_after_seconds": ("2.5", 2.5),
}


def flag(name):
    return "--" + name.replace("_", "-")


def run(*arguments):
    """Runs a command line in a new process, which fails if JAX is imported."""
    program = (
        f"import sys; from jaxtrpo.cli.main import main; code = main({list(arguments)!r}); "
        "assert 'jax' not in sys.modules; "
        "sys.exit(code)"
    )
    return subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)


# ---- parsing


def test_table_covers_every_setting():
    assert list(SETTINGS) == [field.name for field in dataclasses.fields(Config)]


@pytest.mark.parametrize("name", SETTINGS)
def test_flag_sets_only_the_setting_of_its_name(name):
    words, value = SETTINGS[name]
    given = [flag("no_" + name)] if words is None else [flag(name), *words.split()]
    command = cli.parse(["train", "X", *given])
    assert command == cli.Train("X", Config(**{name: value}))
    assert getattr(command.config, name) != getattr(Config(), name)


def test_other_flags():
    assert cli.parse(["train", "X"]) == cli.Train("X")
    command = cli.parse("train brax:ant --out there --overwrite --quiet --backend spring".split())
    assert (str(command.out), command.overwrite, command.quiet, command.backend) == ("there", True, True, "spring")
    command = cli.parse("train X --checkpoint-seconds 5 --keep-best --keep-every 1000".split())
    assert (command.checkpoint_seconds, command.keep_best, command.keep_every) == (5.0, True, 1000)
    command = cli.parse("evaluate there --episodes 3 --seed 4 --env X --backend mjx".split())
    assert (str(command.directory), command.episodes, command.seed, command.env) == ("there", 3, 4, "X")


@pytest.mark.parametrize(("word", "number"), [("1e6", 1_000_000), ("2.5E3", 2_500), ("1.e+2", 100), ("7", 7)])
def test_numbers_of_steps_may_be_whole_floats(word, number):
    command = cli.parse(["train", "X", "--total-steps", word, f"--eval_every={word}", "--keep-every", word])
    assert (command.config.total_steps, command.config.eval_every, command.keep_every) == (number,) * 3
    assert cli.parse(["train", "1e6", "--env-options", "x=1e6"]).config.env_options == "x=1000000.0"


def test_number_of_steps_that_is_no_whole_number_is_refused(capsys):
    with pytest.raises(SystemExit):
        cli.parse(["train", "X", "--total-steps", "1.5e0"])
    assert "total-steps" in capsys.readouterr().err


def test_two_values_that_are_typed_contradict_each_other_whatever_the_run_had(tmp_path):
    """Also where one of them is what the run had, which is the default."""
    before = Config(algorithm="trpo(max_kl=0.01)", max_kl=0.01)
    save_config(tmp_path, "X", before)
    both = cli.parse(
        ["train", "--config", str(tmp_path), "--algorithm", "trpo(max_kl=0.05)", "--max-kl", "0.01"]
    ).config
    assert (both.algorithm, both.max_kl) == ("trpo(max_kl=0.05)", 0.01)  # which training refuses
    one = cli.parse(["train", "--config", str(tmp_path), "--max-kl", "0.01"]).config
    assert (one.algorithm, one.max_kl) == ("trpo(max_kl=0.01)", 0.01)
    other = cli.parse(["train", "--config", str(tmp_path), "--max_kl=0.02"]).config
    assert (other.algorithm, other.max_kl) == ("trpo()", 0.02)
    spec = cli.parse(["train", "--config", str(tmp_path), "--algorithm", "trpo(max_kl=0.05)"]).config
    assert (spec.algorithm, spec.max_kl) == ("trpo(max_kl=0.05)", None)


def test_help_shows_every_setting_with_its_default_and_docstring(capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main(["train", "--help"])
    assert exit.value.code == 0
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    body = ast.parse(inspect.getsource(config.Config)).body[0].body
    told = 0
    for field, text in zip(body, body[1:], strict=False):
        if isinstance(field, ast.AnnAssign):
            default = getattr(Config(), field.target.id)
            default = " ".join(map(str, default)) if isinstance(default, tuple) else default
            what = flag(field.target.id)
            help_text = re.escape(" ".join(text.value.value.split()))
            assert re.search(rf"{what}\b[^()]* {help_text} \(default: {default}\)", shown), what
            told += 1
    assert told == len(SETTINGS)


@pytest.mark.parametrize("words", ["", "trian X", "train", "train X --total-stps 3", "train X --max-kl a", "evaluate"])
def test_malformed_arguments_are_reported_on_stderr(words, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main(words.split())
    output = capsys.readouterr()
    assert exit.value.code == cli.INPUT_ERROR and output.err and not output.out


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"jaxtrpo {jaxtrpo.__version__}\n")


# ---- errors


def test_bad_setting_is_reported_in_one_line_before_jax_is_imported():
    done = run("train", "HalfCheetah-v5", "--max-kl", "-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "jaxtrpo: error: max_kl=-1.0 must be positive\n"


# ---- running, with a fake training run


def metrics(steps):
    return {
        "env_steps": np.array([10, steps]),
        "return_100": np.array([np.nan, 123.456]),
        "wall_seconds": np.array([1.0, 2.0]),
    }


@pytest.fixture
def training(monkeypatch):
    """Replaces training: tests define what `run` does and inspect its arguments."""

    class Training:
        asked: dict = {}
        progress: bool | None = None

        def does(self):
            raise NotImplementedError

    fake = Training()

    @dataclasses.dataclass
    class Run:
        close: object = None

        def run(self, *, progress):
            fake.progress = progress
            return fake.does()

    def prepare(env, **arguments):
        fake.asked = {"env": env, **arguments}
        return Run()

    monkeypatch.setattr(importlib.import_module("jaxtrpo.training.train"), "prepare", prepare)
    return fake


@dataclasses.dataclass
class State:
    best: tuple = ()


@dataclasses.dataclass
class Result:
    metrics: dict
    state: State = dataclasses.field(default_factory=State)


def test_training_receives_every_setting_and_is_summarised_in_one_line(training, capsys):
    training.does = lambda: Result(metrics(2_000_000))
    words = [
        w
        for name, (v, _) in SETTINGS.items()
        for w in ([flag("no_" + name)] if v is None else [flag(name), *v.split()])
    ]
    assert cli.main(["train", "X", "--out", "there", *words]) == 0
    output = capsys.readouterr()
    assert output.out == "return_100 123.5, 2,000,000 environment steps, 2.0 seconds, saved in there\n"
    asked = {name: training.asked[name] for name in SETTINGS}
    assert asked == {name: value for name, (_, value) in SETTINGS.items()}
    assert (training.asked["env"], str(training.asked["out"]), training.asked["overwrite"]) == ("X", "there", False)
    assert training.progress is True


def test_quiet_hides_progress_and_summary_says_that_nothing_was_saved(training, capsys):
    training.does = lambda: Result(metrics(2_000_000))
    assert cli.main(["train", "X", "--quiet"]) == 0
    assert training.progress is False and training.asked["out"] is None
    assert "not saved" in capsys.readouterr().out


@pytest.mark.parametrize("error", [ValueError("inside"), TypeError("inside"), OSError("inside")])
def test_error_inside_training_keeps_its_traceback(training, error):
    def fail():
        raise error

    training.does = fail
    with pytest.raises(type(error), match="inside"):
        cli.main(["train", "X"])


def test_interrupt_has_its_own_exit_code_and_no_traceback(training, capsys):
    def interrupted():
        raise KeyboardInterrupt

    training.does = interrupted
    assert cli.main(["train", "X"]) == cli.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"

    def interrupted_with_result():
        raise Interrupted(Result(metrics(500)))

    training.does = interrupted_with_result
    assert cli.main(["train", "X"]) == cli.INTERRUPTED
    assert "500 environment steps" in capsys.readouterr().out


def test_early_stop_is_no_failure(training, capsys):
    training.does = lambda: Result({**metrics(500), "return_100": np.array([np.nan, np.nan])})
    assert cli.main(["train", "X"]) == 0
    assert capsys.readouterr().out.startswith("no episode finished, 500 environment steps, 2.0 seconds")


# ---- the package

IMPORTS = {
    "package": "import jaxtrpo as j; assert 'jax' not in sys.modules; f, g = j.train, j.evaluate",
    "names": "from jaxtrpo import train as f, evaluate as g",
    "after modules": "import jaxtrpo as j, jaxtrpo.training.train as t; f, g = t.train, j.evaluate",
    "from submodules": "from jaxtrpo.training.train import prepare; from jaxtrpo import train as f, evaluate as g",
}


@pytest.mark.parametrize("how", IMPORTS)
def test_train_and_evaluate_are_functions_for_every_import_order(how):
    program = (
        f"import sys, pickle, types; {IMPORTS[how]}\n"
        "for x, name in (f, 'train'), (g, 'evaluate'):\n"
        "    assert isinstance(x, types.FunctionType) and x.__name__ == name, x\n"
        "    assert pickle.loads(pickle.dumps(x)) is x and x is getattr(sys.modules['jaxtrpo'], name)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_all_exports_exist_and_dir_lists_only_them():
    assert dir(jaxtrpo) == sorted(jaxtrpo.__all__)
    assert all(getattr(jaxtrpo, name) is not None for name in jaxtrpo.__all__)
    assert set(KINDS["algorithm"]) == set(jaxtrpo.algorithms.__all__) <= set(jaxtrpo.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        jaxtrpo.trian  # noqa: B018
