"""Every error EnvHive raises, in one tree.

    EnvHiveError
    ├── ConfigurationError                    the server cannot start like this
    │   ├── ConcurrencyConfigurationError
    │   ├── TargetError
    │   └── MissingPackageError
    ├── ProviderError                         a server could not be started where it should run
    ├── RequestError                          the caller's mistake; the session goes on
    │   ├── InvalidJSONError
    │   ├── UnknownTypeError
    │   ├── InvalidMessageError
    │   └── MessageTooLargeError
    ├── EnvironmentFailureError               the environment's own code failed
    │   ├── ExecutionError
    │   ├── StepTimeoutError                  (also a TimeoutError)
    │   ├── EnvironmentFactoryError
    │   ├── EnvironmentCrashedError
    │   └── ToolCallError                     (of a tool; says which of the ways it failed)
    ├── SessionError                          the session is not there, or no longer
    │   ├── SessionCapacityError
    │   │   └── QuotaExceededError
    │   ├── SessionExpiredError
    │   ├── SessionNotFoundError
    │   ├── DrainingError
    │   └── UnauthorizedError
    │       └── ForbiddenOriginError
    └── TransportError                        nobody's step: the way to the server failed
        ├── ConnectError                      (also a ConnectionError)
        ├── ConnectionLostError               (also a ConnectionError)
        ├── BadReplyError
        └── RequestTimeoutError               (also a TimeoutError)

What a server answers with is also a `RuntimeError`, which is all that OpenEnv's client raises for it.

A class owns its wire code, says whose fault it is (`outcome`) and whether trying again may help
(`retryable`). The client raises the class that the server raised: `from_wire` finds it by code.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Outcome = Literal["invalid", "env_error", "timeout", "infra_error"]


class EnvHiveError(Exception):
    """Root of the tree. `str(error)` is a sentence for a person; the data is in attributes."""

    code: ClassVar[str] = "SESSION_ERROR"
    outcome: ClassVar[Outcome] = "infra_error"
    retryable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500

    is_from_server = False
    """Whether a server answered with it, and the client raises it."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message or type(self).__name__

    def details(self) -> dict[str, Any]:
        """The attributes that travel beside `message` and `code` on the wire."""
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross process borders (multiprocessing, Ray), whatever their constructors take."""
        return _rebuild, (type(self), self.args, self.__dict__)

    @classmethod
    def _from_wire(cls, message: str, data: dict[str, Any]) -> EnvHiveError:
        return cls(message)


class ConfigurationError(EnvHiveError, ValueError):
    """The server cannot start as configured."""


class ConcurrencyConfigurationError(ConfigurationError):
    """More than one session was asked of an environment that does not claim to support it."""

    def __init__(self, environment_name: str, max_concurrent_envs: int) -> None:
        super().__init__()
        self.environment_name = environment_name
        self.max_concurrent_envs = max_concurrent_envs

    def __str__(self) -> str:
        return (
            f"{self.environment_name} cannot serve {self.max_concurrent_envs} sessions at once: it does not set "
            f"SUPPORTS_CONCURRENT_SESSIONS = True. Set it on the class if instances share no state, "
            f"or limit the server to one session."
        )


class TargetError(ConfigurationError):
    """`envhive serve TARGET` could not be resolved to something to serve."""


class MissingPackageError(ConfigurationError):
    """Something needs a package that is not installed; says what to type."""

    @classmethod
    def of(cls, what: str, extra: str) -> MissingPackageError:
        return cls(f"{what} is not installed: pip install 'envhive[{extra}]'")


class ProviderError(EnvHiveError):
    """A provider could not start what it was asked for, or has lost it."""

    retryable = True


class RequestError(EnvHiveError, RuntimeError):
    """The caller's mistake. The session is unharmed and goes on."""

    code = "VALIDATION_ERROR"
    outcome = "invalid"
    http_status = 422


class InvalidJSONError(RequestError):
    """The frame is not JSON text."""

    code = "INVALID_JSON"
    http_status = 400


class UnknownTypeError(RequestError):
    """The message's `type` is none that this server answers."""

    code = "UNKNOWN_TYPE"
    http_status = 400


class InvalidMessageError(RequestError):
    """The message or the action in it has the wrong shape; `errors` is pydantic's list."""

    code = "VALIDATION_ERROR"

    def __init__(self, message: str, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.errors = errors or []

    def __str__(self) -> str:
        if not self.errors:
            return self.message
        first = self.errors[0]
        loc = first.get("loc")
        where = ".".join(map(str, loc)) if isinstance(loc, (list, tuple)) else ""
        more = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
        return f"{self.message}: {where + ': ' if where else ''}{first.get('msg', '')}{more}"

    def details(self) -> dict[str, Any]:
        return {"errors": self.errors}

    @classmethod
    def _from_wire(cls, message: str, data: dict[str, Any]) -> EnvHiveError:
        errors = data.get("errors")
        return cls(message, [e for e in errors if isinstance(e, dict)] if isinstance(errors, list) else None)


class MessageTooLargeError(RequestError):
    """The message is larger than the other side accepts."""

    code = "MESSAGE_TOO_LARGE"
    http_status = 413


class EnvironmentFailureError(EnvHiveError, RuntimeError):
    """The environment's own code failed. It is never a reward."""

    code = "EXECUTION_ERROR"
    outcome: ClassVar[Outcome] = "env_error"


class ExecutionError(EnvironmentFailureError):
    """`reset`, `step` or `state` raised; the traceback is in the server's log."""


class StepTimeoutError(EnvironmentFailureError, TimeoutError):
    """`reset` or `step` took longer than it was given. Whether it took effect is not known."""

    code = "STEP_TIMEOUT"
    outcome = "timeout"
    http_status = 504


class EnvironmentFactoryError(EnvironmentFailureError):
    """The environment could not be created."""

    code = "FACTORY_ERROR"

    def __init__(self, factory_name: str, message: str = "") -> None:
        super().__init__(message)
        self.factory_name = factory_name

    def __str__(self) -> str:
        return self.message or f"Environment factory '{self.factory_name}' failed to create an instance."

    def details(self) -> dict[str, Any]:
        return {"factory_name": self.factory_name}

    @classmethod
    def _from_wire(cls, message: str, data: dict[str, Any]) -> EnvHiveError:
        return cls(str(data.get("factory_name") or ""), message)


class EnvironmentCrashedError(EnvironmentFailureError):
    """The environment's process ended: by a `signal`, such as SIGSEGV, or with an `exit_code`. Its state is lost."""

    code = "ENV_CRASHED"

    def __init__(self, message: str = "", signal: str | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.signal = signal
        self.exit_code = exit_code

    def __str__(self) -> str:
        if self.message:
            return self.message
        how = "is gone" if self.exit_code is None else f"ended with code {self.exit_code}"
        if self.signal is not None:
            how = f"was killed by {self.signal}"
        return f"The environment's process {how}. reset() starts a new one."

    def details(self) -> dict[str, Any]:
        known = {"signal": self.signal, "exit_code": self.exit_code}
        return {name: value for name, value in known.items() if value is not None}

    @classmethod
    def _from_wire(cls, message: str, data: dict[str, Any]) -> EnvHiveError:
        signal, exit_code = data.get("signal"), data.get("exit_code")
        return cls(
            message, signal if isinstance(signal, str) else None, exit_code if isinstance(exit_code, int) else None
        )


class ToolCallError(EnvironmentFailureError):
    """A tool gave no result. `error_type` says why, in a word of `envhive.tools.ToolErrorType`.

    `outcome` follows from it: `invalid` for a tool that is not there or arguments that it does not take,
    `timeout` for one that took too long, `env_error` for one that raised.
    """

    code = "TOOL_ERROR"

    def __init__(self, message: str, tool_name: str = "", error_type: str = "execution_error") -> None:
        super().__init__(message)
        self.tool_name = tool_name
        self.error_type = error_type
        self.outcome = _TOOL_OUTCOMES.get(error_type, "env_error")  # type: ignore[misc]  # here it is the instance's

    def details(self) -> dict[str, Any]:
        return {"tool_name": self.tool_name, "error_type": self.error_type}

    @classmethod
    def _from_wire(cls, message: str, data: dict[str, Any]) -> EnvHiveError:
        return cls(message, str(data.get("tool_name") or ""), str(data.get("error_type") or "execution_error"))


_TOOL_OUTCOMES: dict[str, Outcome] = {"tool_not_found": "invalid", "invalid_args": "invalid", "timeout": "timeout"}


class SessionError(EnvHiveError, RuntimeError):
    """The session cannot be had, or is gone."""


class SessionCapacityError(SessionError):
    """Every session slot of the server is taken."""

    code = "CAPACITY_REACHED"
    retryable = True
    http_status = 503

    def __init__(self, active_sessions: int, max_sessions: int, message: str = "") -> None:
        super().__init__(message)
        self.active_sessions = active_sessions
        self.max_sessions = max_sessions

    def __str__(self) -> str:
        return self.message or (
            f"Server at capacity: {self.active_sessions} of {self.max_sessions} sessions are in use. "
            f"Try again when one ends, or start the server with a higher limit."
        )

    def details(self) -> dict[str, Any]:
        return {"active_sessions": self.active_sessions, "max_sessions": self.max_sessions}

    @classmethod
    def _from_wire(cls, message: str, data: dict[str, Any]) -> EnvHiveError:
        return cls(_count(data, "active_sessions"), _count(data, "max_sessions"), message)


class QuotaExceededError(SessionCapacityError):
    """Every session that a token is good for is in use. To the client it is a `SessionCapacityError`."""


class SessionExpiredError(SessionError):
    """The session was idle for longer than the server allows."""

    code = "SESSION_EXPIRED"
    retryable = True
    http_status = 410


class SessionNotFoundError(SessionError):
    """No session has this id."""

    code = "SESSION_NOT_FOUND"
    http_status = 404


class DrainingError(SessionError):
    """The server is shutting down and takes no new sessions."""

    code = "DRAINING"
    retryable = True
    http_status = 503


class UnauthorizedError(SessionError):
    """The server wants a token, and got none that it knows."""

    code = "UNAUTHORIZED"
    http_status = 401


class ForbiddenOriginError(UnauthorizedError):
    """A web page of another origin asks, which the server was not told to allow."""

    http_status = 403


class TransportError(EnvHiveError):
    """The way to the server failed; no step is known to have happened."""

    code = "TRANSPORT_ERROR"
    retryable = True


class ConnectError(TransportError, ConnectionError):
    """No connection to the server could be made."""


class ConnectionLostError(TransportError, ConnectionError):
    """The connection ended while it was needed. `reset()` opens a new session.

    `close_code` and `close_reason` are what the server closed it with, if it did.
    """

    def __init__(self, message: str = "", close_code: int | None = None, close_reason: str = "") -> None:
        super().__init__(message)
        self.close_code = close_code
        self.close_reason = close_reason


class BadReplyError(TransportError):
    """What the server sent is no reply to what was asked."""


class RequestTimeoutError(TransportError, TimeoutError):
    """No reply came in time. The late reply, if any, is dropped."""

    outcome = "timeout"


def _rebuild(cls: type[EnvHiveError], args: tuple[Any, ...], attributes: dict[str, Any]) -> EnvHiveError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def _count(data: dict[str, Any], key: str) -> int:
    value = data.get(key)
    return value if isinstance(value, int) else 0


_BY_CODE: dict[str, type[EnvHiveError]] = {
    cls.code: cls
    for cls in (
        SessionError,
        InvalidJSONError,
        UnknownTypeError,
        InvalidMessageError,
        MessageTooLargeError,
        ExecutionError,
        StepTimeoutError,
        EnvironmentFactoryError,
        EnvironmentCrashedError,
        ToolCallError,
        SessionCapacityError,
        SessionExpiredError,
        SessionNotFoundError,
        DrainingError,
        UnauthorizedError,
    )
}


def from_wire(data: Any) -> EnvHiveError:
    """The error that an `error` reply's `data` stands for; never fails, whatever the peer sent."""
    if not isinstance(data, dict):
        return SessionError(f"The server reported an error without details: {data!r}")
    message = str(data.get("message") or "The server reported an error without a message.")
    code = data.get("code")
    cls = _BY_CODE.get(code) if isinstance(code, str) else None
    if cls is None:
        return SessionError(f"{message} (code: {code})")
    return cls._from_wire(message, data)
