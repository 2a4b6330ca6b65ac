"""Rewards as parts that can be named, combined and looked into."""

from envhive.rubrics.base import Rubric
from envhive.rubrics.containers import Gate, RubricDict, RubricList, Sequential, WeightedSum
from envhive.rubrics.judge import LLMJudge
from envhive.rubrics.trajectory import ExponentialDiscountingTrajectoryRubric, TrajectoryRubric

__all__ = [
    "ExponentialDiscountingTrajectoryRubric",
    "Gate",
    "LLMJudge",
    "Rubric",
    "RubricDict",
    "RubricList",
    "Sequential",
    "TrajectoryRubric",
    "WeightedSum",
]
