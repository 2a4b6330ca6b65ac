"""The browsergym environment, with the real package and a real Chromium."""

from __future__ import annotations

import base64
import os
import random
import re
import shutil
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from envhive import GenericEnvClient
from envhive.bench.procfs import tree
from envhive.envs import CHROMIUM, HEADLESS_SHELL
from envhive.envs.browsergym.models import BrowserAction, BrowserObservation
from envhive.envs.browsergym.site import WARES
from tests.support.families import in_another_process
from tests.support.processes import envhive_serve
from tests.support.servers import eventually
from tests.support.wild import is_alive

if find_spec("browsergym") is None or find_spec("playwright") is None:
    pytest.skip("browsergym-core is not installed", allow_module_level=True)
if not any(map(shutil.which, (HEADLESS_SHELL, *CHROMIUM))):
    pytest.skip("chromium is not installed", allow_module_level=True)

from envhive.envs.browsergym import BrowserGymEnvironment

pytestmark = pytest.mark.slow

PRICE, BASKET, NEWS = 0, 1, 3
"""Seeds of each kind of task."""


@pytest.fixture(scope="module")
def env() -> Iterator[BrowserGymEnvironment]:
    env = BrowserGymEnvironment(delay_s=0.05)
    yield env
    env.close()


def do(env: BrowserGymEnvironment, action: str) -> BrowserObservation:
    return env.step(BrowserAction(action=action))


def click(env: BrowserGymEnvironment, seen: BrowserObservation, words: str) -> BrowserObservation:
    return do(env, f"click('{number_of(seen, words)}')")


def number_of(seen: BrowserObservation, words: str) -> str:
    return str(re.findall(rf"\[(\d+)\] {words}", seen.page)[0])


def ware_of(goal: str) -> str:
    (key,) = [key for key, (name, _) in WARES.items() if name in goal]
    return key


def test_a_scripted_policy_tells_a_price(env: BrowserGymEnvironment) -> None:
    goal = env.reset(seed=PRICE).goal
    seen = click(env, do(env, "goto('http://shop.test/wares')"), f"link '{WARES[ware_of(goal)][0]}'")
    (price,) = re.findall(r"StaticText 'Price: ([\d.]+) crowns'", seen.page)
    told = do(env, f"send_msg_to_user('It costs {price}.')")
    assert (told.reward, told.done, told.messages[-1]) == (1.0, True, f"assistant: It costs {price}.")
    env.reset(seed=PRICE)
    wrong = do(env, "send_msg_to_user('1000')")
    assert (wrong.reward, wrong.done) == (0.0, True)


def test_a_scripted_policy_fills_the_basket(env: BrowserGymEnvironment) -> None:
    ware = ware_of(env.reset(seed=BASKET).goal)
    other = next(key for key in WARES if key != ware)
    seen = click(env, do(env, f"goto('http://shop.test/wares/{other}')"), "button 'Put in basket'")
    assert (seen.title, seen.reward, seen.done) == ("Basket", 0.0, False)
    click(env, seen, "button 'Empty the basket'")
    seen = click(env, do(env, f"goto('http://shop.test/wares/{ware}')"), "button 'Put in basket'")
    assert (seen.reward, seen.done) == (1.0, True)


def test_a_scripted_policy_subscribes(env: BrowserGymEnvironment) -> None:
    (name,) = re.findall(r"as (.+)\.", env.reset(seed=NEWS).goal)
    seen = do(env, "goto('http://shop.test/news')")
    seen = do(env, f"fill('{number_of(seen, 'textbox')}', {name!r})")
    assert (seen.error, seen.reward) == ("", 0.0)
    seen = click(env, seen, "button 'Subscribe'")
    assert (seen.reward, seen.done) == (1.0, True)


def test_a_random_policy_never_breaks_it(env: BrowserGymEnvironment) -> None:
    dice = random.Random(2)
    env.reset(seed=BASKET)
    calls = [
        "click('{}')",
        "hover('{}')",
        "fill('{}', 'x')",
        "go_back()",
        "noop()",
        "nonsense({})",
        "",
        "scroll(0, {})",
    ]
    for _ in range(6):
        seen = do(env, dice.choice(calls).format(dice.randrange(20)))
        assert seen.reward is not None
    assert do(env, "goto('http://shop.test/')").title == "The Harbour Shop"


def test_nothing_but_the_shop_can_be_reached(env: BrowserGymEnvironment) -> None:
    env.reset(seed=BASKET)
    for action in (
        "goto('file:///etc/passwd')",
        "goto('chrome://version')",
        "goto('view-source:http://shop.test/')",
        "goto('http://example.org/')",
        "goto('http://127.0.0.1:1/')",
        "upload_file('7', '/etc/passwd')",
        "__import__('os').getcwd()",
    ):
        seen = do(env, action)
        assert seen.error, action
        assert "root:" not in seen.page
        assert "ERR_CONNECTION_REFUSED" not in seen.error  # which would mean that it was tried


def test_a_screenshot_is_a_picture_where_one_is_wanted(env: BrowserGymEnvironment) -> None:
    assert env.reset(seed=1).screenshot == ""
    other = BrowserGymEnvironment(screenshot=True)
    try:
        assert base64.b64decode(other.reset(seed=1).screenshot)[:4] == b"\x89PNG"
    finally:
        other.close()


def test_two_environments_of_a_process_share_a_browser_and_no_visit(env: BrowserGymEnvironment) -> None:
    other = BrowserGymEnvironment()
    try:
        env.reset(seed=NEWS)
        other.reset(seed=NEWS)
        click(other, do(other, "goto('http://shop.test/wares/rope')"), "button 'Put in basket'")
        assert "It is empty." in do(env, "goto('http://shop.test/basket')").page
    finally:
        other.close()
        other.close()
    with pytest.raises(RuntimeError, match="closed"):
        other.reset()
    with pytest.raises(RuntimeError, match="must agree"):
        BrowserGymEnvironment(start_url="http://127.0.0.1:1/")


def test_a_page_of_ones_own_and_its_host_can_be_reached() -> None:
    with envhive_serve("echo") as own:
        settings = {"start_url": f"{own.url}/health", "goal": "Look at it."}
        actions = [{"action": "goto('http://a.test/')"}]
        made = f"environment_class('browsergym')(**{settings!r})"
        seen, away = in_another_process(f"play({made}, doing({actions!r}))")
    assert (seen["goal"], "healthy" in seen["page"]) == ("Look at it.", True)
    assert "ERR_NAME_NOT_RESOLVED" in away["error"]
    with pytest.raises(ValueError, match="start_url must be"):
        BrowserGymEnvironment(start_url="somewhere")


def test_a_killed_session_leaves_no_browser() -> None:
    with envhive_serve("browsergym") as server, GenericEnvClient(server.url).sync() as client:
        client.reset(seed=1)
        pids = [pid for pid in tree(server.process.pid) if is_alive(pid)]
        browsers = [pid for pid in pids if "chrom" in Path(f"/proc/{pid}/comm").read_text()]
        (session,) = [pid for pid in pids if _is_parent_of_driver(pid, pids)]
        assert browsers
        os.kill(session, signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, browsers)))


def _is_parent_of_driver(pid: int, pids: list[int]) -> bool:
    drivers = [each for each in pids if Path(f"/proc/{each}/comm").read_text().strip() in ("node", "MainThread")]
    parents = {int(Path(f"/proc/{each}/stat").read_text().rsplit(") ", 1)[1].split()[1]) for each in drivers}
    return pid in parents
