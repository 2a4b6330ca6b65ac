"""A rubric that asks a language model."""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

from envhive.rubrics.base import Rubric

_NUMBER: Final = r"(\d+\.?\d*)"


class Completes(Protocol):
    """Whatever can complete a prompt."""

    async def complete(self, prompt: str) -> str: ...


class LLMJudge(Rubric):
    """Asks a model for a number.

    Args:
        prompt_template: The question, with `{action}` and `{observation}` where they go.
        client: Anything with `async complete(prompt) -> str`.
        score_pattern: Where the number is in the answer: a regular expression, its first group if it has one.
        default_score: The score where no number is found.
        normalize: Whether to keep the score between 0 and 1.
    """

    def __init__(
        self,
        prompt_template: str,
        client: Completes,
        *,
        score_pattern: str | None = None,
        default_score: float = 0.0,
        normalize: bool = True,
    ) -> None:
        self.prompt_template = prompt_template
        self._client = client
        self._score_pattern = re.compile(score_pattern or _NUMBER)
        self.default_score = default_score
        self.normalize = normalize

    async def forward(self, action: Any, observation: Any) -> float:
        return self._parse_score(await self._client.complete(self._render_prompt(action, observation)))

    def _render_prompt(self, action: Any, observation: Any) -> str:
        """Override to ask in another way."""
        return self.prompt_template.format(action=action, observation=observation)

    def _parse_score(self, response: str) -> float:
        """Override to read the answer in another way."""
        match = self._score_pattern.search(response)
        try:
            score = float(match[1] if match.lastindex else match[0]) if match else self.default_score
        except ValueError:  # the author's pattern found something that is no number
            score = self.default_score
        return max(0.0, min(1.0, score)) if self.normalize and match else score

    def state_dict(self) -> dict[str, Any]:
        return {
            "prompt_template": self.prompt_template,
            "score_pattern": self._score_pattern.pattern,
            "default_score": self.default_score,
            "normalize": self.normalize,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.prompt_template = state.get("prompt_template", self.prompt_template)
        self._score_pattern = re.compile(state.get("score_pattern", self._score_pattern))
        self.default_score = state.get("default_score", self.default_score)
        self.normalize = state.get("normalize", self.normalize)
