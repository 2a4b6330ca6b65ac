"""The messages of the protocol, as values."""

from __future__ import annotations

from typing import Final

from msgspec import Raw, Struct

LAYER_2: Final = "envhive.v1"
"""The WebSocket subprotocol that a client offers, and a server selects, to speak layer 2."""

NO_DATA: Final = Raw()
"""Stands for a message without a `data` field."""


class Message(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A request as it came off the wire: its type, and its data still as JSON text."""

    type: str
    data: Raw = NO_DATA

    @property
    def has_data(self) -> bool:
        return self.data is not NO_DATA


class Request(Message, frozen=True, gc=False):
    """A request of layer 2, which may carry an id and a time limit."""

    id: int | str | None = None
    timeout_s: float | None = None


class StepRequest(Struct, forbid_unknown_fields=True, frozen=True, gc=False, tag_field="type", tag="step"):
    """A step, and nothing but a step."""

    data: Raw


class ExtendedStepRequest(StepRequest, frozen=True, gc=False, tag="step"):
    """The same in layer 2."""

    id: int | str | None = None
    timeout_s: float | None = None
