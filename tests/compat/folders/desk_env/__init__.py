from .client import DeskEnv

__all__ = ["DeskEnv"]
