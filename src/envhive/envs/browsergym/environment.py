"""The browsergym environment: BrowserGym's own, on pages of its own."""

from __future__ import annotations

import ast
import base64
import functools
import io
import uuid
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.core.env import BrowserEnv
from browsergym.core.task import OpenEndedTask
from browsergym.utils.obs import flatten_axtree_to_str

from envhive.environment import Environment
from envhive.envs.browsergym.browser import Browser
from envhive.envs.browsergym.models import BrowserAction, BrowserObservation, BrowserState
from envhive.envs.browsergym.site import VISIT, Visit
from envhive.envs.browsergym.tasks import ShopTask

_ACTIONS: Final = HighLevelActionSet(["chat", "infeas", "bid", "nav", "tab"], multiaction=False)
_REFUSED: Final = {"upload_file"}
"""Actions that would hand files of the server's machine to a page."""


def _code_of(action: str, patience_s: float) -> str:
    """The Python of an action; raises `ValueError` for one that leads off the web."""
    tree = ast.parse(_ACTIONS.to_python_code(action))
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name in _REFUSED:
                raise ValueError(f"{name} is not allowed here.")
            address = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
            if name == "goto" and not str(address).startswith(("http://", "https://")):
                raise ValueError("goto takes addresses that begin with http:// or https://.")
    # BrowserGym gives an element half a second, which a busy machine exceeds: a click was done and yet had failed.
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and ast.unparse(node) == "timeout=500":
            node.value = ast.Constant(round(patience_s * 1000))
    return ast.unparse(ast.fix_missing_locations(tree))


class BrowserGymEnvironment(Environment[BrowserAction, BrowserObservation, BrowserState]):
    """A browser with a task; on the shop that comes with it, or on a page of yours."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True
    ISOLATION: ClassVar[str] = "process"  # BrowserGym has one Playwright a process, and that one thread

    def __init__(
        self,
        start_url: str = "",
        goal: str = "",
        executable: str = "",
        screenshot: bool = False,
        delay_s: float = 0.1,
        patience_s: float = 5.0,
    ) -> None:
        """Make one.

        Args:
            start_url: A page to begin with in place of the shop; the browser can then reach its host too.
            goal: What is to be done there. Such an episode has no reward.
            executable: The Chromium to use, unless it is found on the path.
            screenshot: Whether observations have a picture of the page.
            delay_s: Seconds to wait after an action for the page to react.
            patience_s: Seconds that an action waits for its element, and for the page that it leads to.
        """
        super().__init__()
        host = urlsplit(start_url).hostname or ""
        if start_url and not host:
            raise ValueError(f"start_url must be an http address, not {start_url!r}")
        self._browser: Browser | None = Browser.shared(executable, host)
        self._screenshot = screenshot
        self._name = uuid.uuid4().hex
        task: Any = functools.partial(OpenEndedTask, start_url=start_url, goal=goal) if start_url else self._shop
        self._env: Any = BrowserEnv(
            task,
            pre_observation_delay=delay_s,
            slow_mo=0 if start_url else None,
            action_mapping=functools.partial(_code_of, patience_s=patience_s),
            pw_context_kwargs={"extra_http_headers": {VISIT: self._name}},
        )
        self._state = BrowserState()

    def _shop(self, seed: int | None) -> ShopTask:
        assert self._browser is not None
        visit = self._browser.site.visits[self._name] = Visit()
        return ShopTask(seed, visit)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> BrowserObservation:
        """Begin with a new window on the first page. The seed chooses the task in the shop."""
        if self._browser is None:
            raise RuntimeError("It is closed.")
        seen, _ = self._env.reset(seed=seed)
        self._state = BrowserState(episode_id=episode_id or str(uuid.uuid4()))
        return self._observed(seen)

    def step(self, action: BrowserAction, timeout_s: float | None = None, **kwargs: Any) -> BrowserObservation:
        if self._env.task is None:
            raise RuntimeError("Call reset first.")
        seen, reward, terminated, truncated, _ = self._env.step(action.action)
        self._state.step_count += 1
        observation = self._observed(seen)
        observation.reward, observation.done = float(reward), bool(terminated or truncated)
        return observation

    def _observed(self, seen: dict[str, Any]) -> BrowserObservation:
        self._state.goal, self._state.url = seen["goal"], seen["url"]
        return BrowserObservation(
            goal=seen["goal"],
            url=seen["url"],
            title=seen["open_pages_titles"][int(seen["active_page_index"][0])],
            page=flatten_axtree_to_str(seen["axtree_object"]),
            focused=seen["focused_element_bid"] or "",
            error=seen["last_action_error"],
            messages=[f"{each['role']}: {each['message']}" for each in seen["chat_messages"]],
            screenshot=_png(seen["screenshot"]) if self._screenshot else "",
        )

    @property
    def state(self) -> BrowserState:
        return self._state

    def close(self) -> None:
        if self._browser is not None:
            try:
                self._env.close()
            finally:
                self._browser.site.visits.pop(self._name, None)
                self._browser.release()
                self._browser = None


def _png(pixels: Any) -> str:
    from PIL import Image  # BrowserGym needs it anyway; loaded only for those who want pictures

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
