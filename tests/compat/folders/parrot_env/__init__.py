from .client import ParrotEnv
from .models import ParrotAction, ParrotObservation

__all__ = ["ParrotAction", "ParrotEnv", "ParrotObservation"]
