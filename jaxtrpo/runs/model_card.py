"""Model cards for the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from jaxtrpo.envs.observation_space import as_space
from jaxtrpo.policies.trained import TrainedPolicy
from jaxtrpo.rollout.evaluation import Evaluation, stopped_in_words
from jaxtrpo.runs.config_file import MADE_WITH
from jaxtrpo.runs.directory import write_whole, writing
from jaxtrpo.runs.export import ONNX_FILE, STABLEHLO_FILE, observation_names, stacks_frames, state_parts
from jaxtrpo.runs.reader import LoggedRun
from jaxtrpo.runs.view.report import BLANK, cells, summary

CARD_FILE, LIBRARY = "README.md", "jaxtrpo"
TASK = "reinforcement-learning"


def require_no_other_readme(directory: Path) -> None:
    """Raises FileExistsError if a directory has a README.md that is not a model card of ours."""
    card = directory / CARD_FILE
    if card.exists() and f"library_name: {LIBRARY}" not in card.read_text(errors="replace"):
        raise FileExistsError(
            f"out={str(directory)!r}: {card} is not a model card of jaxtrpo; choose another directory"
        )


def write_card(
    policy: TrainedPolicy, run: LoggedRun | None, evaluation: Evaluation, directory: Path, *, where: str = ""
) -> Path:
    """Writes README.md: how the policy was trained, the return it achieves, and how to use its files.

    Args:
      policy: exported policy.
      run: training run; None if only the policy is available.
      evaluation: evaluation of the deterministic policy.
      directory: directory of the exported files.
      where: where it was evaluated, if not in the environment that it was trained in.

    Returns:
      The path of the card.

    Raises:
      OutputError: the card cannot be written.
    """
    algorithm = "policy" if run is None else str(run.settings.get("algorithm", "policy"))
    number = f"{evaluation.mean:.2f} +/- {evaluation.std:.2f}"
    results = EvalResult(
        task_type=TASK,
        task_name=TASK,
        dataset_type=where or policy.env_name,
        dataset_name=where or policy.env_name,
        metric_type="mean_reward",
        metric_name="mean_reward",
        metric_value=number,
    )
    about = ModelCardData(
        library_name=LIBRARY,
        tags=[policy.env_name, TASK, "deep-reinforcement-learning", "jax"],
        model_name=f"{algorithm} on {policy.env_name}",
        eval_results=[results],
    )
    others = {"mask": policy.masked, "first": stacks_frames(policy), "*state": state_parts(policy)}
    inputs = [*_variables(policy), *(name for name, is_one in others.items() if is_one)]
    lines = [
        "---",
        about.to_yaml().strip(),
        "---",
        "",
        f"# {policy.env_name}, {algorithm}",
        "",
        f"A policy trained with jaxtrpo. Without exploration noise its return is {number} (mean and standard deviation "
        f"over {len(evaluation.returns)} episodes{f' in {where}' if where else ''}).",
        *([stopped_in_words(evaluation)] if evaluation.stopped else []),
        "",
        "## Use",
        "",
        f"`{ONNX_FILE}` only needs onnxruntime. Observations are {_arrays(policy)}, {_format(policy)}; the model "
        "normalises them and bounds the actions.",
        "",
        "```python",
        "import numpy as np",
        "import onnxruntime",
        "",
        f'session = onnxruntime.InferenceSession("{ONNX_FILE}")',
        *(
            f"{name} = np.zeros((1, {', '.join(map(str, leaf.shape))}), np.{leaf.dtype})"
            for name, leaf in zip(_variables(policy), as_space(policy.observed).leaves, strict=True)
        ),
        *_call(policy),
        "```",
        "",
        f'With JAX: `jax.export.deserialize(open("{STABLEHLO_FILE}", "rb").read()).call({", ".join(inputs)})`.',
    ]
    if run is not None:
        totals = cells(summary(run))
        names = {"environment steps": "steps", "seconds": "seconds", "return_100": "return_100"}
        lines += [
            "",
            "## Training",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {name} | {totals[cell]} |" for name, cell in names.items() if totals[cell] != BLANK),
            *(f"| `{name}` | {value} |" for name, value in run.settings.items() if name not in MADE_WITH),
            *(f"| {name} | {value} |" for of in MADE_WITH for name, value in run.settings.get(of, {}).items()),
        ]
    path = directory / CARD_FILE
    with writing(path, advice=""):
        write_whole(path, ("\n".join(lines) + "\n").encode())
    return path


def _variables(policy: TrainedPolicy) -> list[str]:
    """Returns the names of Python variables for the inputs that are observations."""
    return [name.replace(".", "_") for name in observation_names(policy)]


def _arrays(policy: TrainedPolicy) -> str:
    leaves = as_space(policy.observed).leaves
    names = [f"`{name}` " if len(leaves) > 1 else "" for name in observation_names(policy)]
    shapes = [", ".join(map(str, ("batch", *leaf.shape))) for leaf in leaves]
    return ", ".join(f"{name}{leaf.dtype} [{shape}]" for name, leaf, shape in zip(names, leaves, shapes, strict=True))


def _call(policy: TrainedPolicy) -> list[str]:
    """Returns the lines of Python that compute an action."""
    names = observation_names(policy)
    masks, given = [], ", ".join(f'"{name}": {value}' for name, value in zip(names, _variables(policy), strict=True))
    if policy.masked:
        masks = [f"mask = np.ones((1, {sum(policy.actions.counts)}), bool)  # which choices are legal"]
        given += ', "action_mask": mask'
    parts = state_parts(policy)
    if not parts:
        return [*masks, f'action = session.run(["action"], {{{given}}})[0]']
    if stacks_frames(policy):
        masks = [*masks, "first = np.ones(1, bool)  # only in the first step of an episode, then zeros"]
        given += ', "first": first'
    zeros = ", ".join(f"np.zeros({part.shape}, np.{part.dtype})" for part in parts)
    return [
        *masks,
        f"state = [{zeros}]  # at the beginning of an episode",
        'names = {f"state_{i}": part for i, part in enumerate(state)}',
        f"action, *state = session.run(None, {{{given}, **names}})",
    ]


def _format(policy: TrainedPolicy) -> str:
    """Describes the observations that the exported policy takes."""
    observations = policy.observations
    if observations is None or observations.is_flat:
        return "as the environment returns them"
    return f"made by `jaxtrpo.load_policy(...).flatten` from the environment's {observations.description}"
