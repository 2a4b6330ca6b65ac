"""The chat environment."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from envhive.envs.chat import Chain, ChatAction, ChatEnvironment, ChatObservation, LengthReward, Message, PatternReward
from envhive.envs.chat.tokenizers import load_tokenizer


class Letters:
    """A tokenizer whose tokens are letters."""

    def apply_chat_template(self, conversation: list[dict[str, str]], *, tokenize: bool = True) -> Any:
        assert tokenize
        return [ord(letter) for turn in conversation for letter in f"{turn['role'][0]}{turn['content']}"]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


class Batches(Letters):
    """One that answers as newer releases of transformers do."""

    def apply_chat_template(self, conversation: list[dict[str, str]], *, tokenize: bool = True) -> Any:
        return {"input_ids": [super().apply_chat_template(conversation)], "attention_mask": []}


def test_a_conversation_begins_as_it_is_told_to() -> None:
    env = ChatEnvironment(system_prompt="Be brief.")
    assert env.reset().messages == [Message(role="system", content="Be brief.")]
    history = [{"role": "user", "content": "Hi"}]
    begun = env.reset(system_prompt="", messages=history, episode_id="mine")
    assert (begun.messages, begun.reward, begun.done) == ([Message(role="user", content="Hi")], None, False)
    assert env.state.episode_id == "mine"
    with pytest.raises(ValidationError, match="role"):
        env.reset(messages=[{"role": "nobody", "content": ""}])


def test_a_scripted_policy_is_rewarded_for_what_it_says() -> None:
    env = ChatEnvironment(turns=2, reward_pattern=r"\b4\b", reward_length=10)
    env.reset(messages=[{"role": "user", "content": "2 + 2?"}])
    first, second = env.step(ChatAction(content="I think that")), env.step(ChatAction(content="4"))
    assert (first.reward, first.done) == (pytest.approx(10 / 12), False)
    assert (second.reward, second.done) == (2.0, True)
    assert env.state.step_count == 2


def test_a_random_policy_is_kept_word_for_word() -> None:
    dice = random.Random(1)
    env = ChatEnvironment(reward_length=5)
    env.reset()
    said = [(dice.choice(["system", "user", "assistant", "tool"]), "x" * dice.randrange(20)) for _ in range(50)]
    for role, content in said:
        seen = env.step(ChatAction(role=role, content=content))  # type: ignore[arg-type]
        assert (seen.reward is None) == (role != "assistant")
    assert [(message.role, message.content) for message in seen.messages] == said


def test_an_observation_is_not_changed_by_what_is_said_later() -> None:
    env = ChatEnvironment()
    env.reset()
    first = env.step(ChatAction(content="a"))
    env.step(ChatAction(content="b"))
    assert len(first.messages) == 1


@pytest.mark.parametrize("tokenizer", [Letters(), Batches()])
def test_a_tokenizer_turns_the_conversation_to_tokens_and_back(tokenizer: Letters) -> None:
    env = ChatEnvironment(tokenizer=tokenizer)
    assert env.reset().tokens == []
    seen = env.step(ChatAction(tokens=[72, 105]))
    assert seen.messages == [Message(role="assistant", content="Hi")]
    assert seen.tokens == [ord("a"), 72, 105]


def test_tokens_without_a_tokenizer_are_refused() -> None:
    env = ChatEnvironment()
    env.reset()
    with pytest.raises(ValueError, match="no tokenizer"):
        env.step(ChatAction(tokens=[1]))
    with pytest.raises(ValueError, match="not both"):
        env.step(ChatAction(tokens=[1], content="a"))
    assert env.state.step_count == 0


def test_a_tokenizers_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class AutoTokenizer:
        @staticmethod
        def from_pretrained(name: str) -> Letters:
            asked.append(name)
            return Letters()

    module = ModuleType("transformers")
    module.AutoTokenizer = AutoTokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", module)
    load_tokenizer.cache_clear()
    try:
        for _ in range(2):
            env = ChatEnvironment(tokenizer="letters")
            env.reset()
        assert env.step(ChatAction(content="b")).tokens == [97, 98]
        assert asked == ["letters"]
    finally:
        load_tokenizer.cache_clear()


def test_a_tokenizer_by_name_without_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"envhive\[chat\]"):
        ChatEnvironment(tokenizer="gpt2")


def test_transforms_add_up() -> None:
    both = Chain([PatternReward("a", weight=2), LengthReward(1)])
    seen = both(ChatObservation(messages=[Message(role="assistant", content="ab")]))
    assert seen.reward == 2.5
    with pytest.raises(ValueError, match="most"):
        LengthReward(0)
