"""`jaxtrpo export`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg

from jaxtrpo.cli.command import FAILED, Work, find_modules_here, needs
from jaxtrpo.config.checks import MOST_EPISODES, expanded, require_whole
from jaxtrpo.runs.directory import require_writable

if TYPE_CHECKING:
    from jaxtrpo.policies.trained import TrainedPolicy


@dataclasses.dataclass(frozen=True)
class Export:
    """Export a policy as ONNX and StableHLO, for use without jaxtrpo."""

    directory: Positional[Annotated[Path, arg(metavar="DIR")]]
    """directory of a run or of a snapshot"""
    out: Path | None = None
    """directory for policy.onnx and policy.stablehlo; if not given, DIR/export"""
    card: FlagCreatePairsOff[bool] = False
    """also evaluate the policy and write a model card, README.md, for the Hugging Face Hub"""
    policy: str | None = None
    """network of your own that the policy was trained with, such as my_module:MyPolicy"""
    episodes: int = 10
    """episodes of the evaluation for --card"""
    env: str | None = None
    """environment of the evaluation for --card; if not given, the one the policy was trained in"""
    env_options: str | None = None
    """options of the environment's constructor; if not given, those of the training run, or none with another --env"""
    max_episode_steps: int | None = None
    """time limit of the evaluation for --card, in environment steps; if not given, that of the training run, or that of
    --env itself. Without a time limit, episodes are stopped after 10,000 steps"""

    def prepare(self) -> Work:
        """See `Command.prepare`."""
        from jaxtrpo.cli.own_parts import network
        from jaxtrpo.parallel.devices import choose_actors
        from jaxtrpo.runs.export import export_policy
        from jaxtrpo.runs.policy_file import load_policy

        require_whole(1, MOST_EPISODES, episodes=self.episodes)
        if self.max_episode_steps is not None:
            require_whole(1, max_episode_steps=self.max_episode_steps)
        if not self.card:
            self._require_no_evaluation()
        find_modules_here(self.env)
        out = expanded(self.out or self.directory / "export")
        if self.directory.exists():  # otherwise, loading the policy says so
            require_writable(out.absolute(), f"out={str(out)!r}")
        choose_actors(program=True)  # the environment may be a JAX program
        policy = load_policy(self.directory, policy=network(self.policy))
        try:
            import jax2onnx  # noqa: F401
            import onnx  # noqa: F401

            from jaxtrpo.runs.model_card import require_no_other_readme
        except ModuleNotFoundError as error:
            raise needs("export", error, "share") from error
        if self.card:
            require_no_other_readme(out)

        def work() -> int:
            for path in export_policy(policy, out):
                print(path)
            return self._write_card(policy, out) if self.card else 0

        return work

    def _require_no_evaluation(self) -> None:
        """Raises ValueError if a setting of the evaluation is given although there is none."""
        for name in ("env", "env_options", "max_episode_steps"):
            if (given := getattr(self, name)) is not None:
                raise ValueError(f"{name}={given!r} is for the evaluation of the model card; add --card")

    def _write_card(self, policy: TrainedPolicy, out: Path) -> int:
        """Writes the card, after the export, so that an unavailable environment costs only the card."""
        from jaxtrpo.config.messages import one_line
        from jaxtrpo.envs.gymnasium.errors import SimulatorError
        from jaxtrpo.rollout.evaluation import prepare_evaluation
        from jaxtrpo.runs.directory import METRICS_FILE
        from jaxtrpo.runs.model_card import write_card
        from jaxtrpo.runs.reader import read_run

        try:
            place = self.env, self.episodes, self.max_episode_steps, self.env_options
            evaluation = prepare_evaluation(policy, *place)(0)
            own = expanded(self.directory)
            run = read_run(own) if (own / METRICS_FILE).exists() else None  # a snapshot has none
        except (ValueError, SimulatorError) as error:
            why = one_line(str(error).partition("\n\n")[0], 1000)
            print(
                f"jaxtrpo: error: --card: {why}; the card was not written, but the files above are complete",
                file=sys.stderr,
            )
            return FAILED
        limit = self.max_episode_steps and f"at most {self.max_episode_steps} steps"
        given = [text for text in (self.env_options, limit) if text]
        where = ", ".join([self.env or policy.env_name, *given]) if self.env or given else ""
        print(write_card(policy, run, evaluation, out, where=where))
        return 0
