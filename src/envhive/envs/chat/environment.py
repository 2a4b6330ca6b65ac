"""The chat environment: keeps a conversation, and has it judged by transforms."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from envhive.environment import Transform
from envhive.envs.chat.models import ChatAction, ChatObservation, ChatState, Message
from envhive.envs.chat.tokenizers import Tokenizer, load_tokenizer, tokens_of
from envhive.envs.chat.transforms import Chain, LengthReward, PatternReward
from envhive.envs.trying import TriedEnvironment


class ChatEnvironment(TriedEnvironment[ChatAction, ChatObservation, ChatState]):
    """Keeps a conversation; transforms give the reward."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(
        self,
        system_prompt: str = "",
        tokenizer: Tokenizer | str | None = None,
        turns: int = 0,
        reward_pattern: str = "",
        reward_length: int = 0,
        transform: Transform[ChatObservation] | None = None,
    ) -> None:
        """Make one.

        Args:
            system_prompt: What each conversation begins with.
            tokenizer: An object with `apply_chat_template` and `decode`, or a name that transformers knows.
            turns: Messages of the assistant after which the episode ends; 0: it does not.
            reward_pattern: A regular expression; 1 for a message of the assistant that has it.
            reward_length: 1 for a message of the assistant of at most so many characters, less for a longer one.
            transform: Gives the reward in place of these two.
        """
        judges: list[Transform[ChatObservation]] = [PatternReward(reward_pattern)] if reward_pattern else []
        judges += [LengthReward(reward_length)] if reward_length else []
        super().__init__(transform or (Chain(judges) if judges else None))
        self._system_prompt = system_prompt
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self._turns = turns
        self._spoken = 0
        self._state = ChatState()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        system_prompt: str | None = None,
        messages: list[dict[str, str]] | None = None,
        **kwargs: Any,
    ) -> ChatObservation:
        """Begin a conversation: with a system prompt, if there is one, and with `messages`, if they are given."""
        prompt = self._system_prompt if system_prompt is None else system_prompt
        begun = [Message(role="system", content=prompt)] if prompt else []
        begun += [Message.model_validate(message) for message in messages or []]
        self._spoken = 0
        self._state = ChatState(episode_id=episode_id or str(uuid.uuid4()), messages=begun)
        return self._seen()

    def step(self, action: ChatAction, timeout_s: float | None = None, **kwargs: Any) -> ChatObservation:
        if self._state.episode_id is None:
            raise RuntimeError("There is no conversation yet: reset first.")
        if action.tokens and action.content:
            raise ValueError("An action has either content or tokens, not both.")
        content = self._decoded(action.tokens) if action.tokens else action.content
        self._state.step_count += 1
        self._state.messages.append(Message(role=action.role, content=content))
        self._spoken += action.role == "assistant"
        observation = self._seen()
        observation.done = 0 < self._turns <= self._spoken
        return self._apply_transform(observation)

    def _seen(self) -> ChatObservation:
        messages = list(self._state.messages)
        if self._tokenizer is None or not messages:
            return ChatObservation(messages=messages)
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        return ChatObservation(messages=messages, tokens=tokens_of(self._tokenizer, conversation))

    def _decoded(self, tokens: list[int]) -> str:
        if self._tokenizer is None:
            raise ValueError("There is no tokenizer to read tokens with: serve it with --set tokenizer=NAME.")
        return str(self._tokenizer.decode(tokens))

    @property
    def state(self) -> ChatState:
        return self._state
