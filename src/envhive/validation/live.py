"""The third stage: a live server, used as trainers use it, and as they misuse it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from envhive.bench.servers import clean_environment
from envhive.checks import Broken, NotChecked, Report, where_apart, without_names
from envhive.errors import (
    EnvHiveError,
    EnvironmentFailureError,
    InvalidMessageError,
    RequestError,
    SessionCapacityError,
)
from envhive.validation.trying import Repertoire, repertoire
from envhive.validation.visiting import SEED, Visitor, document_of

_ACCIDENTS: Final = ("AttributeError", "has no attribute", "NoneType", "KeyError", "IndexError")
_SEPARATE: Final = "Keep all state on the instance: no class attributes, globals or shared files that change."
_OPENENV_SCRIPT: Final = Path(__file__).with_name("openenv_episode.py")
_OPENENV_IMPORT_S: Final = 60.0
"""OpenEnv's client takes seconds to import."""


class LiveChecks(Visitor):
    """The checks of one server.

    Args:
        url: Where the server is.
        report: Where to tell what was found.
        sessions: How many sessions to open at once.
        actions: What to step with; made up from the schema if there are none.
        timeout_s: How long any one request may take.
        openenv_python: A Python that has OpenEnv; this one, if it has, when not given.
    """

    def __init__(
        self,
        url: str,
        report: Report,
        *,
        sessions: int = 8,
        actions: list[Any] | None = None,
        timeout_s: float = 30.0,
        openenv_python: str | None = None,
    ) -> None:
        super().__init__(url, sessions, timeout_s)
        self.report = report
        self.given = actions or []
        self.openenv_python = openenv_python

    async def run(self) -> None:
        """All checks; those that need what an earlier one found are left out where that failed."""
        schema: dict[str, Any] = {}
        with self.report.checking("the server is healthy"):
            await self._healthy()
        if not self.report.passed:
            return
        with self.report.checking("it tells its schema"):
            schema = await self._schema()
        with self.report.checking("it tells what it is"):
            await self._metadata()
        if not schema and not self.given:
            return
        before = await self.active_sessions()
        with self.report.checking("a session can be had"):
            self.repertoire = await self._find_repertoire(schema)
        if not self.repertoire.good:
            return
        with self.report.checking("an episode runs"):
            await self._one_episode()
        if "an episode runs" in self.report.passed:
            with self.report.checking("the same seed brings the same episode over the wire"):
                await self._seeds()
            with self.report.checking("sessions side by side do not disturb each other"):
                await self._side_by_side()
            with self.report.checking("the state counts the steps"):
                await self._counting()
        with self.report.checking("a step before reset is survived"):
            await self._step_before_reset()
        with self.report.checking("bad actions are refused, and the session lives"):
            await self._bad_actions()
        with self.report.checking("sessions that are closed give back their places"):
            await self._places(before)
        with self.report.checking("it can be used over HTTP alone"):
            await self._http()
        with self.report.checking("OpenEnv's own client can use it"):
            await self._openenv()

    # The checks.

    async def _healthy(self) -> None:
        answer = await self.ask("/health")
        status = document_of(answer).get("status")
        if answer.status != 200 or status not in ("healthy", "degraded"):
            raise Broken(
                f"{self.url}/health answers {answer.status}, status {status!r}.",
                f"`envhive doctor {self.url}` tells why.",
            )

    async def _schema(self) -> dict[str, Any]:
        answer = await self.ask("/schema")
        document = document_of(answer)
        if answer.status == 404:
            raise Broken(
                "/schema is not there: perhaps the app has removed it.",
                "Where that is meant, name actions to try: --action.",
                level="warning" if self.given else "error",
            )
        if answer.status != 200:
            raise Broken(
                f"/schema answers {answer.status}: {document.get('detail') or 'no reason is given'}.",
                "See the server's log for the traceback.",
            )
        missing = [role for role in ("action", "observation", "state") if not isinstance(document.get(role), dict)]
        if missing:
            raise Broken(
                f"/schema has no {' and no '.join(missing)}.",
                "Declare the types: derive from Environment[MyAction, MyObservation, MyState].",
            )
        schema: dict[str, Any] = document["action"]
        return schema

    async def _metadata(self) -> None:
        answer = await self.ask("/metadata")
        document = document_of(answer)
        if answer.status != 200:
            raise Broken(
                f"/metadata answers {answer.status}: {document.get('detail', '')}.",
                "Let get_metadata() return an EnvironmentMetadata(name=..., description=...).",
            )
        if not document.get("name") or not document.get("description"):
            raise Broken(
                "/metadata has no name or no description.",
                "Write a docstring on the class: its first line is the description.",
                level="warning",
            )

    async def _find_repertoire(self, schema: dict[str, Any]) -> Repertoire:
        try:
            return await repertoire(self.url, schema, self.given, self.timeout_s)
        except SessionCapacityError as error:
            raise Broken(str(error), "Give the server room for the validation.") from None
        except EnvHiveError as error:
            raise Broken(f"{type(error).__name__}: {error}", "See the server's log for the traceback.") from None

    async def _one_episode(self) -> None:
        trace, _ = await self.episode_alone(1)
        for index, (observation, reward, _) in enumerate(trace):
            where = "reset" if index == 0 else "step"
            if not isinstance(observation, dict):
                raise Broken(
                    f"the observation of {where} arrives as {type(observation).__name__}.",
                    "Return an Observation, or a class derived from it.",
                )
            if reward is not None and not isinstance(reward, (int, float)):
                raise Broken(f"the reward of {where} arrives as {reward!r}.", "Make it a float: float(reward).")

    async def _seeds(self) -> None:
        episodes = [await self.episode_alone(1), await self.episode_alone(2)]
        first, second = [[(without_names(seen), *rest) for seen, *rest in trace] for trace, _ in episodes]
        if first != second:
            named = [
                [{"observation": seen, "reward": reward, "done": done} for seen, reward, done in trace]
                for trace in (first, second)
            ]
            pairs = list(zip(*named, strict=False))
            where = next((number for number, (one, other) in enumerate(pairs) if one != other), None)
            at = len(pairs) if where is None else where
            field = "" if where is None else f", in {where_apart(pairs[where][0], pairs[where][1])}"
            raise Broken(
                f"two sessions with seed {SEED} and the same actions differ at "
                f"{'reset' if at == 0 else f'step {at}'}{field}.",
                "Draw all randomness from a generator that reset(seed) seeds, and keep clocks out of observations.",
                level="warning",
            )

    async def _side_by_side(self) -> None:
        alone = [await self.episode_alone(1), await self.episode_alone(2)]
        async with AsyncExitStack() as stack:
            clients = await self.open(stack)
            if len(clients) < 2:
                raise NotChecked("the server takes one session at a time")
            beside = await asyncio.gather(*map(self.episode, clients), return_exceptions=True)
        failed = [each for each in beside if isinstance(each, Broken)]
        if failed:  # alone it did not
            raise Broken(f"of {len(beside)} sessions at once {len(failed)} failed: {failed[0].problem}", _SEPARATE)
        for part, name in ((0, "observations"), (1, "states")):
            if alone[0][part] != alone[1][part]:
                continue  # it is not the same twice anyway, so nothing can be told from a difference
            different = 0
            for episode in beside:
                if isinstance(episode, BaseException):
                    raise episode
                different += episode[part] != alone[0][part]
            if different:
                raise Broken(
                    f"of {len(beside)} sessions at once with the same seed and actions, {different} got other {name} "
                    f"than a session alone.",
                    _SEPARATE,
                )

    async def _counting(self) -> None:
        async with self.client() as client:
            begun = await self.guard("reset", self.reset(client))
            before = await self.guard("state", client.state())
            result = await self.guard("step", client.step(self.action(0, begun.observation)))
            after = await self.guard("state", client.state())
        if not isinstance(after.get("step_count"), int):
            raise Broken("the state has no step_count.", "Return a State, or a class derived from it.", level="warning")
        if after["step_count"] - before.get("step_count", 0) != 1 and not result.done:
            raise Broken(
                f"step_count was {before.get('step_count')} before a step and {after['step_count']} after it.",
                "Set it to 0 in reset, and add 1 in each step.",
                level="warning",
            )

    async def _step_before_reset(self) -> None:
        async with self.client() as client:
            try:
                await client.step(self.action(0), self.timeout_s)
            except EnvironmentFailureError as error:
                message = str(error)
            except RequestError as error:
                message = str(error)
            except EnvHiveError as error:
                raise Broken(
                    f"a step before reset ends the session: {type(error).__name__}: {error}",
                    "Raise an exception in step that says to reset first.",
                ) from None
            else:
                return
            await self.must_live(client, "a step before reset")
        if any(accident in message for accident in _ACCIDENTS):
            raise Broken(
                f"a step before reset fails by accident: {message}",
                "Set every attribute in __init__, and raise an error in step that says to reset first.",
                level="warning",
            )

    async def _bad_actions(self) -> None:
        taken: list[str] = []
        async with self.client() as client:
            await self.guard("reset", self.reset(client))
            for what, action in self.repertoire.bad:
                try:
                    await client.step(action, self.timeout_s)
                except InvalidMessageError:
                    pass
                except EnvironmentFailureError as error:
                    raise Broken(
                        f"{what} reached the environment, which failed: {error}",
                        "Declare the action's fields with their types, so that such an action is refused.",
                    ) from None
                except EnvHiveError as error:
                    raise Broken(
                        f"{what} ends the session: {type(error).__name__}: {error}",
                        "A bad action should be answered with VALIDATION_ERROR: serve it with `envhive serve`.",
                    ) from None
                else:
                    taken.append(what)
                await self.must_live(client, what)
            await self.guard("reset after bad actions", self.reset(client))
        if taken:
            raise Broken(
                f"{' and '.join(taken)} was taken as a good one.",
                "Declare the action's fields with their types, and derive it from Action, which refuses other fields.",
                level="warning",
            )

    async def _places(self, before: int | None) -> None:
        if before is None:
            raise NotChecked("the server does not tell how many sessions it has")
        deadline = time.monotonic() + self.timeout_s
        while (now := await self.active_sessions()) is not None and now > before:
            if time.monotonic() > deadline:
                raise Broken(
                    f"{now - before} session(s) still hold a place {self.timeout_s:g} s after they were closed.",
                    f"Look at what close() waits for: `envhive doctor {self.url}` shows it.",
                )
            await asyncio.sleep(0.05)

    async def _http(self) -> None:
        begun = await self.ask("/reset", "POST", {"seed": SEED})
        if begun.status in (404, 405):
            raise NotChecked("the server offers no /reset (production mode)")
        session = begun.headers.get("X-Session-Id")
        named = {} if session is None else {"X_Session_Id": session}
        action = self.action(0, document_of(begun).get("observation"))
        answers = [("/reset", begun), ("/step", await self.ask("/step", "POST", {"action": action}, **named))]
        answers.append(("/state", await self.ask("/state", **named)))
        if session is not None:
            answers.append(("/close", await self.ask("/close", "POST", **named)))
        for path, answer in answers:
            # Without a session each call gets a fresh environment, which may well say to reset first.
            if answer.status != 200 and (session is not None or path == "/reset"):
                raise Broken(
                    f"{path} answers {answer.status}: {document_of(answer).get('detail', '')}.",
                    "See the server's log for the traceback.",
                )
        refused = await self.ask("/step", "POST", {"action": [1, 2]})
        if refused.status != 422:
            raise Broken(
                f"/step answers {refused.status} to a bad action, not 422.",
                "Serve it with `envhive serve`; or, if the app has a /step of its own, let that answer 422.",
            )

    async def _openenv(self) -> None:
        python = self.openenv_python or _python_with_openenv()
        if python is None:
            raise NotChecked(
                "OpenEnv is not installed here; `pip install openenv`, or name a Python that has it: --openenv-python"
            )
        async with self.client() as client:
            begun = await self.guard("reset", self.reset(client))
        action = json.dumps(self.action(0, begun.observation))
        command = [python, str(_OPENENV_SCRIPT), self.url, action, str(SEED)]
        try:
            done = await asyncio.to_thread(
                subprocess.run,
                command,
                env=None if self.openenv_python is None else clean_environment(),  # not this Python's paths
                capture_output=True,
                text=True,
                timeout=_OPENENV_IMPORT_S + self.timeout_s,
            )
        except FileNotFoundError:
            raise Broken(f"{python} is not there.", "Give --openenv-python the path of a Python.") from None
        except subprocess.TimeoutExpired:
            raise Broken("it did not get through an episode in time.", "Look at the server's log.") from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise Broken(f"it failed: {said}", "Look at the server's log; the message is OpenEnv's.")


def _python_with_openenv() -> str | None:
    for name in ("openenv", "openenv-core"):
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return sys.executable
    return None
