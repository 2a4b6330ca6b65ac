from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.rubrics import Gate, Rubric, Sequential, WeightedSum
from openenv.core.rubrics.trajectory import ExponentialDiscountingTrajectoryRubric


class Answer(Action):
    text: str


class Sheet(Observation):
    question: int = 0
    credit: list[float] = []


class NotEmpty(Rubric):
    def forward(self, action: Answer, observation: Sheet) -> float:
        return 1.0 if action.text.strip() else 0.0


class Brief(Rubric):
    def __init__(self, most: int):
        super().__init__()
        self.most = most

    def forward(self, action: Answer, observation: Sheet) -> float:
        return max(0.0, 1.0 - len(action.text) / self.most)


class Right(Rubric):
    def forward(self, action: Answer, observation: Sheet) -> float:
        return 1.0 if "42" in action.text else 0.25


class Passed(ExponentialDiscountingTrajectoryRubric):
    def score_trajectory(self, trajectory) -> float:
        right = [action for action, _ in trajectory if "42" in action.text]
        return len(right) / len(trajectory)


class ExamRubric(Rubric):
    def __init__(self):
        super().__init__()
        self.answer = Sequential(Gate(NotEmpty()), WeightedSum([Right(), Brief(20)], weights=[0.75, 0.25]))
        self.exam = Passed(gamma=0.5)

    def forward(self, action: Answer, observation: Sheet) -> float:
        whole = self.exam(action, observation)
        return whole if observation.done else self.answer(action, observation)

    def reset(self) -> None:
        self.exam.reset()


class ExamEnvironment(Environment[Answer, Sheet, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__(rubric=ExamRubric())
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs: Any) -> Sheet:
        self._reset_rubric()
        self._state = State(episode_id=episode_id)
        return Sheet(question=1)

    def step(self, action: Answer, timeout_s=None, **kwargs: Any) -> Sheet:
        self._state.step_count += 1
        sheet = Sheet(question=self._state.step_count + 1, done=self._state.step_count == 3)
        sheet.reward = self._apply_rubric(action, sheet)
        if sheet.done:
            sheet.credit = self.rubric.exam.compute_step_rewards()
            sheet.metadata = {**sheet.metadata, "graded": True}
        return sheet

    @property
    def state(self) -> State:
        return self._state
