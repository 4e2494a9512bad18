"""The command `jaxtrpo`. Slow imports are deferred until a command needs them, so that --help is instant."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import itertools
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn

import tyro
from tyro.conf import OmitArgPrefixes, subcommand

import jaxtrpo
from jaxtrpo.cli.algorithms import Algorithms
from jaxtrpo.cli.command import FAILED, INPUT_ERROR, INTERRUPTED, Command
from jaxtrpo.cli.export import Export
from jaxtrpo.cli.launch import Launch
from jaxtrpo.cli.recipes import Recipes
from jaxtrpo.cli.sweep import Sweep
from jaxtrpo.cli.train import Evaluate, Train
from jaxtrpo.cli.view import Plot, Report, Video, Watch
from jaxtrpo.config import NUMBERS_OF_STEPS, USUAL_ALGORITHM, Config
from jaxtrpo.config.checks import whole
from jaxtrpo.config.environment import made_elsewhere, options_of
from jaxtrpo.config.messages import short
from jaxtrpo.envs.gymnasium.errors import SimulatorError
from jaxtrpo.envs.modules import module_of
from jaxtrpo.runs.config_file import load_config
from jaxtrpo.runs.directory import DirectoryInUse, OutputError
from jaxtrpo.runs.termination import end_in_time

_REPEATABLE = ("grid", "random")  # flags that may be given several times
_COMMANDS = (Train, Launch, Evaluate, Sweep, Plot, Video, Report, Watch, Export, Algorithms, Recipes, Config)
_SWITCHES = {
    field.name.replace("_", "-")
    for command in _COMMANDS
    for field in dataclasses.fields(command)
    if isinstance(field.default, bool)
}

STEP_FLAGS = {f"--{name.replace('_', '-')}" for name in (*NUMBERS_OF_STEPS, "keep_every")}


def parse(arguments: Sequence[str]) -> Command:
    """Parses a command line.

    Raises:
      SystemExit: --help was given, or the arguments are malformed, which has been reported.
      ValueError: a setting is out of bounds.
    """
    if list(arguments[:1]) == ["launch"] and "--" in arguments:  # the started processes parse the rest
        at = list(arguments).index("--")
        launched = parse([*arguments[:at], "train"])
        assert isinstance(launched, Launch)
        return dataclasses.replace(launched, command=tuple(arguments[at + 1 :]))
    arguments = _with_whole_numbers(arguments)
    _require_not_empty(arguments)
    _require_once(arguments)
    _require_known(arguments)
    command = _parsed(arguments, _run_from_config(arguments))
    if isinstance(command, Train) and command.recipe:
        return _parsed(arguments, _run_from_recipe(command))
    return command


def _parsed(arguments: Sequence[str], repeated: Train | None) -> Command:
    """Parses a command line, with the settings of another run as the defaults of all flags, if one is given."""
    defaults: dict[str, Any] = {} if repeated is None else {"default": repeated}
    train = Annotated[Train, subcommand("train", prefix_name=False, **defaults)]
    launch = Annotated[Launch, subcommand("launch", prefix_name=False)]
    evaluate = Annotated[Evaluate, subcommand("evaluate", prefix_name=False)]
    plot = Annotated[Plot, subcommand("plot", prefix_name=False)]
    video = Annotated[Video, subcommand("video", prefix_name=False)]
    report = Annotated[Report, subcommand("report", prefix_name=False)]
    watch = Annotated[Watch, subcommand("watch", prefix_name=False)]
    export = Annotated[Export, subcommand("export", prefix_name=False)]
    sweep = Annotated[Sweep, subcommand("sweep", prefix_name=False)]
    algorithms = Annotated[Algorithms, subcommand("algorithms", prefix_name=False)]
    recipes = Annotated[Recipes, subcommand("recipes", prefix_name=False)]
    command = tyro.cli(
        train | launch | evaluate | sweep | plot | video | report | watch | export | algorithms | recipes,
        prog="jaxtrpo",
        description=f"Trust-region and actor-critic reinforcement learning in JAX, version {jaxtrpo.__version__}.",
        args=list(arguments),
        config=(OmitArgPrefixes,),
    )
    if repeated is None or not isinstance(command, Train):
        return command
    return dataclasses.replace(command, config=_resolve_overrides(command.config, arguments))


def _with_whole_numbers(arguments: Sequence[str]) -> list[str]:
    """Writes numbers of steps such as 1e6, which Python takes as well, as whole numbers."""
    written = list(arguments)
    for at, (before, word) in enumerate(itertools.pairwise(["", *arguments])):
        flag, joined, value = word.partition("=")
        flag, value, start = (flag, value, f"{flag}=") if joined else (before, word, "")
        if flag.replace("_", "-") in STEP_FLAGS and re.fullmatch(r"\d+(\.\d*)?e\+?\d{1,2}", value, re.IGNORECASE):
            written[at] = f"{start}{whole(float(value))}"
    return written


def _require_not_empty(arguments: Sequence[str]) -> None:
    """Raises ValueError for an empty argument, which would be taken for the current directory."""
    for before, word in itertools.pairwise(["", *arguments]):
        flag, joined, value = word.partition("=")
        if not word or (word.startswith("--") and joined and not value):
            name = flag or (before if before.startswith("--") else "an argument")
            raise ValueError(f"{name} is empty; leave it out or give a value")


def _require_once(arguments: Sequence[str]) -> None:
    """Raises ValueError for a flag given twice with different values, of which the last would silently win."""
    given: dict[str, tuple[str, str]] = {}  # by name: value, and text as typed
    for word, following in itertools.pairwise([*arguments, ""]):
        flag, joined, value = word.partition("=")
        name = flag.removeprefix("--").replace("_", "-")
        if not word.startswith("--") or name in _REPEATABLE:
            continue
        if (switch := name.removeprefix("no-")) in _SWITCHES:
            name, now = switch, (name, word)
        else:
            now = (value, word) if joined else (following, f"{word} {following}")
        before = given.setdefault(name, now)
        if before[0] != now[0]:
            raise ValueError(f"{before[1]} and {now[1]} contradict each other; give only one of them")


def _require_known(arguments: Sequence[str]) -> None:
    """Raises ValueError for a flag of another library or of a part, which says what to type; tyro rejects others."""
    command = {"train": Train, "sweep": Sweep}.get(arguments[0] if arguments else "")
    if command is None:
        return
    known = {field.name for of in (command, Config) for field in dataclasses.fields(of)} | {"help", "config"}
    words = [*arguments[1:], ""]
    flags = {word.partition("=")[0]: word.partition("=")[2] or after for word, after in itertools.pairwise(words)}
    for word in arguments[1:]:
        flag = word.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or {name, name.removeprefix("no_")} & known:
            continue
        from jaxtrpo.config.aliases import advice

        instead = advice(name, _literal(flags[flag]), algorithm=flags.get("--algorithm", USUAL_ALGORITHM), shell=True)
        if instead is not None:
            raise ValueError(f"unknown flag {flag}; write {instead}")


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text or "...")  # a flag without a value
    except (ValueError, SyntaxError):
        return text


def _resolve_overrides(now: Config, arguments: Sequence[str]) -> Config:
    """Returns the settings of a repeated run; where a flag contradicts a setting of the old run, the flag wins."""
    from jaxtrpo.config.specs import KINDS, settings_in, without_argument

    for kind in KINDS:
        spec = getattr(now, kind)
        for name, value in settings_in(kind, spec or ""):
            other = getattr(now, name, None)
            typed_spec, typed_value = (_is_typed(f"--{each.replace('_', '-')}", arguments) for each in (kind, name))
            if other in (None, value) or typed_spec == typed_value:  # if both are typed, they are refused later
                continue
            change = {name: None} if typed_spec else {kind: without_argument(spec, name)}
            now = dataclasses.replace(now, **change)
    return now


def _run_from_config(arguments: Sequence[str]) -> Train | None:
    """Returns the run that --config names, whose settings become the defaults of all flags; None without --config."""
    found = [
        after if joined else following
        for word, following in itertools.pairwise([*arguments, ""])
        for name, joined, after in [word.partition("=")]
        if name == "--config"
    ]
    if not any(found) or arguments[0] != "train":
        return None
    if _is_typed("--recipe", arguments):
        raise ValueError("--recipe and --config contradict each other; give only one of them")
    settings = load_config(found[-1])
    module = module_of(settings["env"])
    if module is not None and settings["env"] not in arguments:
        raise ValueError(
            f"config={found[-1]!r}: env={short(settings['env'], 60)} needs the module {short(module, 60)}; if you "
            "trust it, repeat the environment as ENV"
        )
    if made_elsewhere(options_of(settings.get("env_options"))) and not _is_typed("--env-options", arguments):
        raise ValueError(
            f"config={found[-1]!r}: env_options={short(settings['env_options'], 200)} start another Python "
            "interpreter; repeat them with --env-options if you trust it"
        )
    _require_own_parts_typed(found[-1], settings, arguments)
    return Train(env=settings.pop("env"), config=Config(**settings))


def _run_from_recipe(command: Train) -> Train:
    """Returns the run that --recipe stands for, whose settings become the defaults of all flags."""
    from jaxtrpo.runs.recipes import load_recipe

    settings = load_recipe(command.env)
    return Train(env=settings.pop("env"), config=Config(**settings))


def _require_own_parts_typed(place: str, settings: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Raises ValueError for a part of the user's own, which a file names but does not contain, unless it is typed."""
    from jaxtrpo.config.specs import KINDS, is_built_in

    for kind in KINDS:
        spec = settings.get(kind)
        if isinstance(spec, str) and not is_built_in(kind, spec) and not _is_typed(f"--{kind}", arguments):
            raise ValueError(
                f"config={place!r}: its {kind} is your own, {short(spec, 60)}, which the file does not contain; "
                f"add --{kind} MODULE:NAME"
            )


def _is_typed(flag: str, arguments: Sequence[str]) -> bool:
    return any(word.partition("=")[0].replace("_", "-") == flag for word in arguments)


def command() -> NoReturn:
    """Runs the command line of this process and ends it, even where a simulator would hang at its exit."""
    code = FAILED  # after an unexpected error
    try:
        code = main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else FAILED
        raise
    finally:
        with contextlib.suppress(ValueError):  # not in the main thread
            for kind in (signal.SIGINT, signal.SIGTERM):
                signal.signal(kind, signal.SIG_IGN)
        end_in_time(code)
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit code.

    Invalid input is reported in one line; errors during the work keep their traceback.
    """
    try:
        try:
            return _main(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe; without this, Python would report it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--version"]:
        print(f"jaxtrpo {jaxtrpo.__version__}")
        return 0
    try:
        try:
            work = parse(arguments).prepare()
        except BrokenPipeError:
            raise
        except (ValueError, TypeError, OSError) as error:
            _say(f"jaxtrpo: error: {' '.join(str(error).split())}")
            return INPUT_ERROR
        return work()
    # The message is one sentence, with the traceback of a simulator.
    except (SimulatorError, OutputError, DirectoryInUse) as error:
        _say(f"jaxtrpo: error: {error}")
        return FAILED
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED


def _say(message: str) -> None:
    """Prints to standard error, unless nobody can read it: the exit code says what happened all the same."""
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)
