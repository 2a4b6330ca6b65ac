"""An environment that keeps a conversation."""

from envhive.envs.chat.environment import ChatEnvironment
from envhive.envs.chat.models import ChatAction, ChatObservation, ChatState, Message
from envhive.envs.chat.tokenizers import Tokenizer
from envhive.envs.chat.transforms import Chain, LengthReward, PatternReward

__all__ = [
    "Chain",
    "ChatAction",
    "ChatEnvironment",
    "ChatObservation",
    "ChatState",
    "LengthReward",
    "Message",
    "PatternReward",
    "Tokenizer",
]
