"""The tasks in the shop, as BrowserGym takes them."""

from __future__ import annotations

from typing import Any, Final

from browsergym.core.task import AbstractBrowserTask

from envhive.envs.browsergym.site import HOST, WARES, Visit

NAMES: Final = ("Ada Moor", "Bo Lind", "Cleo Vance", "Dag Holm")


class ShopTask(AbstractBrowserTask):  # type: ignore[misc,unused-ignore]
    """Find a price, fill the basket, or subscribe: the seed chooses which, and of what."""

    def __init__(self, seed: int | None, visit: Visit) -> None:
        super().__init__(seed)
        self.slow_mo = 0
        self._visit = visit
        self._kind = str(self.random.choice(["price", "basket", "news"]))
        self._ware = str(self.random.choice(list(WARES)))
        self._name = str(self.random.choice(NAMES))

    @classmethod
    def get_task_id(cls) -> str:
        return "envhive.shop"

    def setup(self, page: Any) -> tuple[str, dict[str, Any]]:
        page.goto(f"http://{HOST}/", timeout=10_000)
        name, _ = WARES[self._ware]
        goal = {
            "price": f"What does the {name} cost? Tell the number with send_msg_to_user.",
            "basket": f"Put one {name} in the basket, and nothing else.",
            "news": f"Subscribe to the news as {self._name}.",
        }[self._kind]
        return goal, {}

    def validate(self, page: Any, chat_messages: list[dict[str, Any]]) -> tuple[float, bool, str, dict[str, Any]]:
        """The reward, whether it is over, and nothing more to say."""
        if self._kind == "price":
            # The first one is BrowserGym's own greeting.
            said = [each["message"] for each in chat_messages if each["role"] == "assistant"][1:]
            return float(bool(said) and WARES[self._ware][1] in said[-1]), bool(said), "", {}
        done = self._visit.basket == [self._ware] if self._kind == "basket" else self._visit.subscribers == [self._name]
        return float(done), done, "", {}
