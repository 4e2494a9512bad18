"""Spec strings of algorithms, rules, critics and policies."""

from __future__ import annotations

import inspect
import re

import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrpo.config.specs import CALLED, KINDS, factory, parse, settings_in

ALL = [(kind, name) for kind, names in KINDS.items() for name in names]
# For each setting a value that is nowhere its default.
VALUES = {
    "max_kl": 0.03, "gae_lambda": 0.5, "advantage_memory": 7, "fisher_samples": 33, "cg_iterations": 4,
    "cg_damping": 0.25, "line_search_shrink": 0.6, "line_search_steps": 3, "target_kl": 0.02, "penalty": 3.0,
    "clip": 0.15, "learning_rate": 0.02, "epochs": 3, "minibatch_size": 48, "minibatch_per_env": 0.75,
    "entropy_bonus": 0.02, "kl_stop": 0.04,
    "max_gradient_norm": 0.75, "hidden": (7, 5), "initial_log_std": -1.5, "state_dependent_std": True,
    "normalize_returns": False, "shared_from": 8, "ridge": 0.01, "window": 4, "required": 0.2, "steps_delta": 64,
    "steps_bounds": (64, 640), "kl_delta": 0.002, "kl_bounds": (0.002, 0.2), "strength": 0.01, "gain": 0.1,
    "kl_range": (0.25, 2.0), "max_steps_per_update": 4096, "settle_steps": 9000, "over": 1000, "replay": 5000,
    "replay_ratio": 2.0, "target_rate": 0.5, "asynchronous": True, "critic_lambda": 0.4, "critic_cg_damping": 0.125,
    "value_hidden": (6, 4), "conditions": 6, "samples": 4, "horizon": 40, "imitation_steps": 30, "model_memory": 5.0,
    "prior_samples": 20.0, "change": (0.25, 1.5), "encoder": (9,), "bptt_steps": 12,
    "shared": True, "value_weight": 0.25, "value_clip": 0.3, "epsilon": 0.5, "n_step": 1, "double": False,
    "kind": "nature", "channels": (4, 8, 12), "pixel_scale": 10.0, "target_entropy": -3.5, "temperature": 0.5,
}  # fmt: skip
SIZE_OF_LAYER = 24  # `hidden` of networks with one such layer


def settings_of(kind: str, name: str) -> list[str]:
    """Names of all settings except *args and **kwargs."""
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return [p.name for p in inspect.signature(factory(kind, name)).parameters.values() if p.kind not in kinds]


def calls() -> list[tuple[str, str]]:
    """Spec strings of every factory: without settings, with each setting alone, and with all."""
    found = []
    for kind, name in ALL:
        own = settings_of(kind, name)
        more = ["max_kl=0.002"] if name in ("linear", "exponential") and kind == "adapt" else []
        for chosen in ([], *([one] for one in own), own):
            values = {**VALUES, "hidden": SIZE_OF_LAYER} if name in ("gru", "lstm", "cnn") else VALUES
            arguments = [f"{setting}={values[setting]!r}" for setting in chosen] + more
            found.append((kind, f"{name}({', '.join(arguments)})" if arguments else name))
    return [
        *dict.fromkeys(found),
        ("adapt", "chain(linear(over=1000, max_kl=0.002), improvement(kl_delta=None), chain(fixed))"),
    ]


@pytest.mark.parametrize(("kind", "words"), calls())
def test_spec_string_round_trips(kind, words):
    made = parse(kind, words)
    if words.startswith("a3c"):  # another name of a2c(asynchronous=True)
        given = words.removeprefix("a3c").strip("()")
        words = f"a2c({given}, asynchronous=True)" if given else "a2c(asynchronous=True)"
    assert made.spec_string == words or (made.spec_string, words) == ("chain()", "chain")
    assert parse(kind, made.spec_string).spec_string == made.spec_string


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_defaults_are_omitted_and_whitespace_is_ignored(kind, name):
    defaults = [p for p in inspect.signature(factory(kind, name)).parameters.values() if p.default is not p.empty]
    words = f" {name}( {' , '.join(f'{p.name} = {p.default!r}' for p in defaults)} ) "
    if name in ("linear", "exponential") and kind == "adapt":
        assert parse(kind, f"{name}(over=None, max_kl=1)").spec_string == f"{name}(max_kl=1)"
    else:
        wanted = "a2c(asynchronous=True)" if name == "a3c" else name
        assert parse(kind, words).spec_string in (wanted, f"{wanted}()")


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_misspelled_name_gets_a_suggestion(kind, name):
    wrong = name + name[-1] if len(name) < 4 else name[:-1]
    with pytest.raises(ValueError) as error:
        parse(kind, f"{wrong}(a=1)")
    said = str(error.value)
    assert said.startswith(f"{kind}='{wrong}(a=1)': unknown {CALLED.get(kind, kind)} '{wrong}'; did you mean ")
    assert name in said.partition("did you mean ")[2] and "\n" not in said


@pytest.mark.parametrize("kind", KINDS)
def test_unrecognisable_name_gets_all_names(kind):
    with pytest.raises(ValueError) as error:
        parse(kind, "xyzzy")
    assert all(name in str(error.value) for name in KINDS[kind])


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_unknown_setting_is_rejected_with_the_known_ones(kind, name):
    if kind == "adapt" and name in ("linear", "exponential"):  # these accept any setting of the algorithm
        return
    own = settings_of(kind, name)
    for setting in own:
        with pytest.raises(ValueError, match=f"did you mean {setting}\\?$"):
            parse(kind, f"{name}({setting}x=1)")
    with pytest.raises(ValueError) as error:
        parse(kind, f"{name}(qqqq=1)")
    said = str(error.value)
    assert said.startswith(f"{kind}='{name}(qqqq=1)': ") and "qqqq" in said and "\n" not in said
    assert all(setting in said for setting in own)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "words",
    ["", "(", "{0}(", "{0})", "{0}()()", "a.{0}", "{0}[0]", "1", "{0} {0}", "{0}; {0}", "lambda: {0}", "{0}(**{{}})",
     "{0}(hidden=print(1))", "{0}(hidden=hidden)", "{0}(1)", "{0}('x')", "{0}(*a)", "{0}(a=1, a=2)", "\0", "-{0}"],
)  # fmt: skip
def test_other_input_is_rejected_in_one_sentence_and_never_executed(kind, words, capsys):
    words = words.format(next(iter(KINDS[kind])))
    with pytest.raises(ValueError) as error:
        parse(kind, words)
    assert str(error.value).startswith(f"{kind}={words!r}") and "\n" not in str(error.value)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("algorithm", "trpo(max_kl=0.0)", "max_kl=0.0 must be positive"),
        ("algorithm", "ppo(epochs=0)", "epochs=0 must be a whole number of at least 1"),
        ("algorithm", "trpo(gea_lambda=1)", "did you mean gae_lambda?"),
        ("policy", "mlp(hidden=(0,))", "hidden=0 must be a whole number of at least 1"),
        ("critic", "linear(ridge=-1.0)", "ridge=-1.0 must be positive"),
        ("adapt", "linear", "linear needs at least one setting"),
        ("adapt", "chain(margin(window=0))", "window=0 must be a whole number of at least 1"),
        ("adapt", "chain(mragin)", "did you mean margin?"),
    ],
)
def test_error_quotes_the_spec_string_and_says_what_is_wrong(kind, words, said):
    with pytest.raises(ValueError) as error:
        parse(kind, words)
    assert str(error.value).startswith(f"{kind}={words!r}: ") and said in str(error.value)


@pytest.mark.parametrize("name", KINDS["algorithm"])
def test_array_in_place_of_a_number_is_refused_by_name(name):
    for setting in settings_of("algorithm", name):
        if type(VALUES[setting]) in (int, float):
            with pytest.raises(ValueError, match=f"^{setting}=.* must be "):
                factory("algorithm", name)(**{setting: np.ones(2)})


def test_number_of_jax_that_is_the_default_is_not_in_the_spec_string():
    assert factory("algorithm", "dqn")(epsilon=jnp.float32(1.0)).spec_string == "dqn"
    assert factory("algorithm", "dqn")(epsilon=jnp.float32(0.5)).spec_string == "dqn(epsilon=0.5)"


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_setting_says_of_a_word_that_it_is_wrong(kind, name):
    for setting in settings_of(kind, name):
        with pytest.raises(ValueError, match=f"{setting}='wrong' must be |, not 'wrong'") as error:
            parse(kind, f"{name}({setting}=wrong)")
        assert "\n" not in str(error.value)


def as_numpy(value):
    if isinstance(value, tuple):
        return tuple(map(as_numpy, value))
    return value if isinstance(value, str) else np.asarray(value)[()]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_scalars_of_numpy_are_written_as_numbers(kind, name):
    """A run with them could not be repeated or resumed: np.float64(0.1) is no literal."""
    values = {**VALUES, "hidden": SIZE_OF_LAYER} if name in ("gru", "lstm", "cnn") else VALUES
    more = {"max_kl": 0.002} if name in ("linear", "exponential") and kind == "adapt" else {}
    given = {**{setting: values[setting] for setting in settings_of(kind, name)}, **more}
    usual, found = (factory(kind, name)(**each) for each in (given, {key: as_numpy(of) for key, of in given.items()}))
    assert found.spec_string == usual.spec_string
    assert parse(kind, found.spec_string).spec_string == usual.spec_string


def test_words_need_no_quotes():
    """Shells take them away: `--policy "cnn(kind='nature')"` needs two kinds."""
    assert parse("policy", "cnn(kind=nature)").spec_string == "cnn(kind='nature')"
    assert settings_in("critic", "cnn(kind=nature, hidden=3)") == [("kind", "nature"), ("hidden", 3)]


def documented(function) -> set[str]:
    """Names in the Args section of a docstring."""
    told = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(function) or "", re.M | re.S)
    return set(re.findall(r"^  \*{0,2}(\w+): ", told[1], re.M)) if told else set()


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_setting_is_documented(kind, name):
    """A factory that only changes the defaults of another may refer to the other's docstring."""
    function = factory(kind, name)
    like = {"exponential": "linear", "margin": "improvement"}.get(name, name)
    assert like == name or f"`{like}`" in inspect.getdoc(function)
    assert documented(factory(kind, like)) >= set(settings_of(kind, name))
    assert documented(function) <= set(inspect.signature(function).parameters)
    first = inspect.getdoc(function).splitlines()[0]
    assert first.endswith(".") and len(first) < 120
