from .parrot_environment import ParrotEnvironment

__all__ = ["ParrotEnvironment"]
