"""Rules that adapt hyperparameters between updates: pure functions of the metrics, compiled with the learner."""

from jaxtrpo.adapt.improvement import improvement, margin
from jaxtrpo.adapt.model_accuracy import model_accuracy
from jaxtrpo.adapt.rule import Rule, chain, fixed, require_columns, require_settings, updated
from jaxtrpo.adapt.schedules import exponential, linear
from jaxtrpo.adapt.trust import trust

__all__ = [
    "Rule",
    "chain",
    "exponential",
    "fixed",
    "improvement",
    "linear",
    "margin",
    "model_accuracy",
    "require_columns",
    "require_settings",
    "trust",
    "updated",
]
