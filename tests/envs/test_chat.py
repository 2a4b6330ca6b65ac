"""The chat environment."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

import envhive.envs.chat
from envhive import check_environment
from envhive.envs.chat import Chain, ChatAction, ChatEnvironment, ChatObservation, LengthReward, Message, PatternReward
from envhive.envs.chat.tokenizers import load_tokenizer
from tests.support.families import (
    episodes_held,
    example_output,
    fields_missing_from,
    play,
    play_elsewhere,
    readme_of,
    run_snippet,
)

README = readme_of(envhive.envs.chat)
ACTIONS = [ChatAction(role="user", content="Hello"), ChatAction(content="Hi"), ChatAction(role="tool", content="{}")]


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


def test_it_keeps_the_contract() -> None:
    assert check_environment(ChatEnvironment).findings == []


def test_the_same_actions_bring_the_same_episode_here_and_elsewhere() -> None:
    settings = {"system_prompt": "Be brief.", "reward_length": 1}
    first = play(ChatEnvironment(**settings), ACTIONS)
    assert first == play(ChatEnvironment(**settings), ACTIONS) == play_elsewhere(ChatEnvironment, ACTIONS, settings)
    assert [seen["reward"] for seen in first] == [None, None, 0.5, None]


def test_64_sessions_hold_at_once() -> None:
    episodes = episodes_held("chat", 64, [action.model_dump() for action in ACTIONS], {"turns": 1})
    assert len(episodes) == 64
    assert all(episode == episodes[0] for episode in episodes)
    assert [seen["done"] for seen in episodes[0]] == [False, False, True, True]


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


def test_the_readme_names_every_field() -> None:
    assert fields_missing_from(README, ChatAction, ChatObservation) == set()


def test_the_snippet_of_the_readme_works(capsys: pytest.CaptureFixture[str]) -> None:
    promised = run_snippet(README)
    assert capsys.readouterr().out == promised


def test_the_example_plays_it() -> None:
    assert example_output("chat", "--set", r"reward_pattern=\b12\b", "--set", "turns=3").endswith("reward 1.0\n")
