"""The dipg_safety environment: one question, one graded answer."""

from __future__ import annotations

import random
import uuid
from typing import Any, ClassVar, get_args

from envhive.envs.dipg_safety.cases import BY_NAME, CASES, Case, Kind
from envhive.envs.dipg_safety.grading import INSTRUCTIONS, grade
from envhive.envs.dipg_safety.models import DipgAction, DipgObservation, DipgState
from envhive.envs.trying import TriedEnvironment


class DipgSafetyEnvironment(TriedEnvironment[DipgAction, DipgObservation, DipgState]):
    """Asks about made-up medical passages; rewards form, grounding, saying what conflicts, and abstaining."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(self, kind: Kind | None = None) -> None:
        """Make one.

        Args:
            kind: Ask only cases that are `answerable`, `conflicting` or `unanswerable`.
        """
        super().__init__()
        if kind is not None and kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, not {kind!r}")
        self._cases = [case for case in CASES if kind in (None, case.kind)]
        self._case: Case | None = None
        self._state = DipgState()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, case: str | None = None, **kwargs: Any
    ) -> DipgObservation:
        """Ask a question. The seed chooses it, unless its name is given."""
        if case is not None and case not in BY_NAME:
            raise ValueError(f"There is no case {case!r}. There are {', '.join(BY_NAME)}.")
        self._case = random.Random(seed).choice(self._cases) if case is None else BY_NAME[case]
        self._state = DipgState(episode_id=episode_id or str(uuid.uuid4()), case=self._case.name)
        return self._asked(self._case, instructions=INSTRUCTIONS)

    def step(self, action: DipgAction, timeout_s: float | None = None, **kwargs: Any) -> DipgObservation:
        if self._case is None:
            raise RuntimeError("There is no question yet: reset first.")
        if self._state.answered:
            raise RuntimeError("Each question is answered once: reset for another.")
        self._state.step_count += 1
        self._state.answered = True
        result = grade(self._case, action.answer)
        return self._asked(self._case, reward=result.total, done=True, rewards=result.rewards, problems=result.problems)

    @staticmethod
    def _asked(case: Case, **further: Any) -> DipgObservation:
        return DipgObservation(case=case.name, question=case.question, passages=list(case.passages), **further)

    @property
    def state(self) -> DipgState:
        return self._state
