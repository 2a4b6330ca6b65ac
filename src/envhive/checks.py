"""`check_environment`: tells an author, in plain words, what breaks the contract."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel, ValidationError

from envhive.inspection import declared_types, factory_name, plan_for, takes_tools, underlying_class
from envhive.samples import legal_move, sample_instance, sample_value, schema_of
from envhive.tools import CallToolAction, ListToolsAction, ListToolsObservation
from envhive.types import Observation
from envhive.wire.codec import encode_state, model_of, payload_of
from envhive.wire.observations import encode_observation

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, and what to do about it."""

    level: Level
    check: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.level}: {self.check}: {self.problem} {self.advice}"


@dataclass(slots=True)
class Report:
    """What the checks found. True if nothing breaks the contract."""

    environment: str
    passed: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """What could not be checked, and why."""

    @contextmanager
    def checking(self, title: str) -> Iterator[None]:
        """A check: it has passed when the block ends, unless that raises `Broken` or `NotChecked`."""
        try:
            yield
        except Broken as broken:
            self.findings.append(Finding(broken.level, title, broken.problem, broken.advice))
        except NotChecked as reason:
            self.skipped.append(f"{title}: {reason}")
        else:
            self.passed.append(title)

    @property
    def ok(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "keeps the contract" if self.ok else "breaks the contract"
        return "\n".join([f"{self.environment} {verdict} ({len(self.passed)} checks passed)", *map(str, self.findings)])


class Broken(Exception):  # noqa: N818
    """A check failed; the rest of it makes no sense."""

    def __init__(self, problem: str, advice: str, level: Level = "error") -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice
        self.level: Level = level


_NAMES: Final = frozenset({"episode_id", "session_id", "run_id", "trace_id"})


class NotChecked(Exception):  # noqa: N818
    """A check cannot be made here; the text says why."""


def check_environment(
    env: Callable[[], Any],
    action: Any = None,
    *,
    action_cls: type[Any] | None = None,
    seed: int = 42,
    steps: int = 3,
    on_check: Callable[[str], None] | None = None,
) -> Report:
    """Check that an environment class keeps the contract.

    Args:
        env: The class, or a function that makes an instance.
        action: An action, or several to be taken in turn. Without one, a valid action is made up from the action class.
        action_cls: What `step` takes, where the class does not declare it.
        seed: Given to `reset`, twice, to see whether it brings the same episode.
        steps: How many steps each episode of the checks has at most.
        on_check: Told the title of each check before it begins.

    Example:
        >>> from envhive.envs.echo import EchoEnvironment
        >>> print(check_environment(EchoEnvironment))
        EchoEnvironment keeps the contract (8 checks passed)
    """
    reports: list[Report] = []
    # On a thread of its own, as a server would, so that it also works where an event loop is running (a notebook).
    checker = _Checker(env, action, action_cls, seed, steps, on_check or (lambda title: None))
    thread = threading.Thread(target=lambda: reports.append(checker.run()))
    thread.start()
    thread.join()
    return reports[0]


class _Checker:
    def __init__(
        self,
        env: Callable[[], Any],
        action: Any,
        action_cls: type[Any] | None,
        seed: int,
        steps: int,
        on_check: Callable[[str], None],
    ) -> None:
        self.on_check = on_check
        self.factory = env
        self.name = factory_name(env)
        self.cls = underlying_class(env)
        self.types = declared_types(self.cls)
        self.actions = list(action) if isinstance(action, Sequence) else [] if action is None else [action]
        self.action_cls = action_cls or self.types.get("action")
        self.keywords: dict[str, Any] = {"seed": seed, "episode_id": "check"}
        self.refused_name: str | None = None  # why reset takes no episode_id, if it does not
        self.seed = seed
        self.steps = steps
        self.seen: dict[int, Any] = {}  # the last observation of each instance
        self.episodes: list[list[Any]] = []  # of instances that were alone
        self.loop = asyncio.Runner()  # one event loop for all: what reset starts must still run in step

    def run(self) -> Report:
        with self.loop:
            return self._run_checks()

    def _run_checks(self) -> Report:
        report = Report(self.name)
        checks: list[tuple[str, Callable[[], None]]] = [
            ("types are declared", self.types_are_declared),
            ("instances can be made", self.can_be_made),
            ("reset returns an observation", self.reset_returns_an_observation),
            ("step returns an observation", self.step_returns_an_observation),
            ("state is a model", self.state_is_a_model),
            ("the same seed brings the same episode", self.seed_decides),
            ("close may be called twice", self.close_twice),
            ("instances share no state", self.instances_are_separate),
        ]
        for title, check in checks:
            self.on_check(title)
            with report.checking(title):
                check()
            if check == self.can_be_made and title not in report.passed:
                break
        return report

    # The checks.

    def types_are_declared(self) -> None:
        missing = [role for role in ("action", "observation") if role not in self.types]
        if self.cls is not None and missing:
            raise Broken(
                f"{self.name} does not say what its {' and '.join(missing)} is.",
                "Derive from Environment[MyAction, MyObservation, MyState], or annotate step.",
                level="warning",
            )

    def can_be_made(self) -> None:
        with self._instance() as env:
            if self.cls is None:
                self.cls, self.types = type(env), declared_types(type(env))
                self.action_cls = self.action_cls or self.types.get("action")
            if not self.actions and takes_tools(type(env)):
                self.actions = self._tool_actions(env)

    def reset_returns_an_observation(self) -> None:
        with self._instance() as env:
            self._check_observation(self._reset(env), "reset")
        if self.refused_name is not None:
            raise Broken(
                f"an episode cannot be given a name: {self.refused_name}",
                "Take episode_id into the state; or leave the parameter out, and the server will, too.",
                level="warning",
            )

    def step_returns_an_observation(self) -> None:
        with self._instance() as env:
            self._reset(env)
            self._check_observation(self._step(env, 0), "step")

    def state_is_a_model(self) -> None:
        with self._instance() as env:
            self._reset(env)
            if inspect.isfunction(inspect.getattr_static(type(env), "state", None)):
                raise Broken("state is a method.", "Put @property above `def state`.")
            state = self._guard("state", lambda: env.state)
        declared = self.types.get("state")
        if declared is not None and isinstance(state, BaseModel) and not isinstance(state, declared):
            told = _told_apart(type(state), declared)
            raise Broken(f"state returns {told} is declared.", "Return the declared class.")
        if not isinstance(state, (BaseModel, dict)):
            raise Broken(f"state returns {type(state).__name__}.", "Return a State, or a class derived from it.")
        try:
            encode_state(state)
        except Exception as error:  # the author's own serialisers may raise anything
            raise Broken(
                f"state cannot be sent as JSON: {_first_line(error)}.", "Keep only what JSON has: text, numbers, lists."
            ) from error

    def seed_decides(self) -> None:
        first, second = self._two_episodes()
        for index, (one, other) in enumerate(zip(first, second, strict=False)):
            if one != other:
                where = "reset" if index == 0 else f"step {index}"
                raise Broken(
                    f"two episodes with seed {self.seed} and the same actions differ at {where}, in "
                    f"{where_apart(one, other)}.",
                    "Draw all randomness from a generator that reset(seed) seeds, and keep clocks out of observations.",
                    level="warning",
                )

    def close_twice(self) -> None:
        env = self._make()
        try:
            self._reset(env)
        finally:
            self._close(env)
        try:
            self._close(env)
        except Broken as broken:
            raise Broken(
                f"a second close() fails: {broken.problem}", "Let close() do nothing when it has been done."
            ) from None

    def instances_are_separate(self) -> None:
        with self._instance() as env:
            claimed = getattr(type(env), "SUPPORTS_CONCURRENT_SESSIONS", False)
            other = self._make()
            if env is other:
                raise Broken(
                    "the factory hands out the same instance twice"
                    + (
                        ", but SUPPORTS_CONCURRENT_SESSIONS is set."
                        if claimed
                        else ", so every session gets what the last one has closed."
                    ),
                    "Make a new instance for each session.",
                    level="error" if claimed else "warning",
                )
            if not claimed:
                self._close(other)
                raise NotChecked("SUPPORTS_CONCURRENT_SESSIONS is not set: sessions come one after the other")
            try:
                beside = self._episode_beside(env, other)
            finally:
                self._close(other)
        alone, again = self._two_episodes()
        if alone == again and beside != alone:
            raise Broken(
                "an episode goes differently while another instance is being used, "
                "but SUPPORTS_CONCURRENT_SESSIONS is set.",
                "Keep all state on the instance: no class attributes, globals or shared files that change.",
            )

    def _episode_beside(self, env: Any, other: Any) -> list[Any]:
        """An episode on one instance while another takes the same steps just before it."""
        self._reset(other)
        seen = [_comparable(self._reset(env))]
        for index in range(self.steps):
            self._step(other, index)
            seen.append(_comparable(self._step(env, index)))
            if seen[-1]["done"]:
                break
        return seen

    # Using an environment.

    def _make(self) -> Any:
        env = self._guard("the constructor", self.factory)
        for method in ("reset", "step"):
            if not callable(getattr(env, method, None)):
                raise Broken(f"{type(env).__name__} has no {method} method.", f"Write `def {method}(self, ...)`.")
        return env

    def _reset(self, env: Any) -> Any:
        plan = plan_for(type(env)).reset
        keywords = plan.select(dict(self.keywords))
        try:
            observation = self._guard("reset", lambda: getattr(env, plan.name)(**keywords))
        except Broken as broken:
            if keywords.pop("episode_id", None) is None:
                raise
            try:
                observation = self._guard("reset", lambda: getattr(env, plan.name)(**keywords))
            except Broken:
                raise broken from None
            del self.keywords["episode_id"]
            self.refused_name = broken.problem
        return self._see(env, observation)

    def _step(self, env: Any, index: int) -> Any:
        plan = plan_for(type(env)).step
        action = self._action(index, self.seen.get(id(env)))
        return self._see(env, self._guard("step", lambda: getattr(env, plan.name)(action)))

    def _see(self, env: Any, observation: Any) -> Any:
        self.seen[id(env)] = observation
        return observation

    def _close(self, env: Any) -> None:
        close = getattr(env, "close", None)
        if callable(close):
            self._guard("close", close)

    @contextmanager
    def _instance(self) -> Iterator[Any]:
        env = self._make()
        try:
            yield env
        finally:
            self._close(env)

    def _two_episodes(self) -> list[list[Any]]:
        """The same episode on two instances, one after the other. Played once: an instance may be a browser."""
        while len(self.episodes) < 2:
            self.episodes.append(self._episode())
        return self.episodes

    def _episode(self) -> list[Any]:
        with self._instance() as env:
            seen = [_comparable(self._reset(env))]
            for index in range(self.steps):
                seen.append(_comparable(self._step(env, index)))
                if seen[-1]["done"]:
                    break
        return seen

    def _tool_actions(self, env: Any) -> list[Any]:
        """What an environment that takes tools can be stepped with: the list of them, and each that a call fits."""
        self._reset(env)
        listed = self._guard(
            "the list of tools", lambda: getattr(env, plan_for(type(env)).step.name)(ListToolsAction())
        )
        actions: list[Any] = [ListToolsAction()]
        for offered in listed.tools if isinstance(listed, ListToolsObservation) else ():
            schema = offered.input_schema
            arguments = sample_value(schema, schema.get("$defs", {}))
            actions.append(CallToolAction(tool_name=offered.name, arguments=arguments))
        return actions

    def _action(self, index: int, seen: Any) -> Any:
        if self.actions:
            return self.actions[index % len(self.actions)]
        if self.action_cls is None:
            raise Broken("no action to step with is known.", "Pass one: check_environment(env, action=MyAction(...)).")
        try:
            return sample_instance(self.action_cls, legal_move(schema_of(self.action_cls), seen, index))
        except (ValueError, TypeError) as error:
            raise Broken(
                f"no valid {self.action_cls.__name__} could be made up ({_first_line(error)}).",
                "Pass one: check_environment(env, action=MyAction(...)).",
                level="warning",
            ) from error

    def _check_observation(self, observation: Any, method: str) -> None:
        if observation is None:
            raise Broken(f"{method} returns nothing.", f"End {method} with `return MyObservation(...)`.")
        declared = self.types.get("observation")
        if declared is not None and not isinstance(observation, declared):
            told = _told_apart(type(observation), declared)
            raise Broken(f"{method} returns {told} is declared.", "Return the declared class.")
        reward = getattr(observation, "reward", None)
        if reward is not None and not isinstance(reward, (bool, int, float)):
            raise Broken(f"{method} gives a reward of type {type(reward).__name__}.", "Make it a float: float(reward).")
        if isinstance(reward, float) and not math.isfinite(reward):
            raise Broken(
                f"{method} gives a reward of {reward}, which arrives as None: JSON has no word for it.",
                "Give a finite number, or None where there is no reward.",
            )
        try:
            payload = payload_of(encode_observation(observation))
        except Exception as error:
            raise Broken(
                f"the observation of {method} cannot be sent as JSON: {_first_line(error)}.",
                "Keep only what JSON has: text, numbers, lists, dicts, models.",
            ) from error
        if declared is Observation:
            declared = type(observation)  # what is declared says nothing of its fields
        if declared is not None and issubclass(declared, BaseModel):
            self._check_round_trip(declared, payload, method)

    def _check_round_trip(self, declared: type[BaseModel], payload: bytes, method: str) -> None:
        document = json.loads(payload)
        beside = {name: document[name] for name in ("reward", "done") if name in declared.model_fields}
        try:
            model_of(declared, {**document["observation"], **beside})
        except ValidationError as error:
            raise Broken(
                f"a typed client cannot read back the observation of {method}: {_first_line(error)}.",
                "Let its fields' types accept what their JSON form is.",
                level="warning",
            ) from error

    def _guard(self, what: str, call: Callable[[], Any]) -> Any:
        """Call the author's code; whatever it raises is a finding."""
        try:
            result = call()
            return self.loop.run(_awaited(result)) if inspect.isawaitable(result) else result
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            raise Broken(
                f"{what} raised {type(error).__name__}: {_first_line(error)}.",
                "See the traceback by calling it yourself.",
            ) from error


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _comparable(observation: Any) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(payload_of(encode_observation(observation)))
    except Exception as error:  # the author's own serialisers may raise anything
        raise Broken(
            f"an observation cannot be sent as JSON: {_first_line(error)}.", "Keep only what JSON has."
        ) from error
    return {**document, "observation": without_names(document.get("observation"))}


def without_names(document: Any) -> Any:
    """A document without what names an episode, which need not be the same twice.

    Example:
        >>> without_names({"log": [{"episode_id": "a1", "by": 3}]})
        {'log': [{'by': 3}]}
    """
    if isinstance(document, dict):
        return {name: without_names(value) for name, value in document.items() if name not in _NAMES}
    return [without_names(value) for value in document] if isinstance(document, list) else document


def where_apart(one: Any, other: Any, path: str = "") -> str:
    """Where two documents differ first.

    Example:
        >>> where_apart({"log": [{"id": 1, "at": 3}]}, {"log": [{"id": 1, "at": 4}]})
        'log[0].at'
    """
    inside: list[tuple[Any, Any, str]] = []
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        inside = [(one.get(name), other.get(name), f"{path}.{name}" if path else str(name)) for name in names]
    elif isinstance(one, list) and isinstance(other, list):
        inside = [(a, b, f"{path}[{index}]") for index, (a, b) in enumerate(zip(one, other, strict=False))]
    return next((where_apart(a, b, there) for a, b, there in inside if a != b), path)


def _told_apart(returned: type, declared: type) -> str:
    """Both classes by their names, and by their modules where two of one name are meant."""
    if returned.__name__ != declared.__name__:
        return f"{returned.__name__}, but {declared.__name__}"
    return f"{returned.__module__}.{returned.__name__}, but {declared.__module__}.{declared.__name__}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return " ".join(line.strip() for line in lines[:3]).rstrip(".") if lines else type(error).__name__
