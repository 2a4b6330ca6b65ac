"""OpenEnv's clients in all the ways that their users use them: each script prints the same with OpenEnv itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.compat.conftest import our_environ
from tests.integration.conftest import clean_environ
from tests.support.processes import envhive_serve

BEGINNING: Final = """
import asyncio
from openenv.core import EnvClient, GenericEnvClient
from openenv.core.client_types import StepResult

class Echo(EnvClient):
    def _step_payload(self, action): return {"message": action}
    def _parse_result(self, payload): return StepResult(payload["observation"], payload["reward"], payload["done"])
    def _parse_state(self, payload): return payload["step_count"]
    async def say_twice(self, word):
        await self.step(word)
        return (await self.step(word)).observation["echoed_message"]

class Starter:
    def start_container(self):
        print("started")
        return URL
    def wait_for_ready(self, base_url, timeout_s=30.0): print("ready", base_url == URL)
    def stop_container(self): print("stopped")
    close = stop_container

class Runtime:
    def start(self):
        print("started")
        return URL
    def wait_for_ready(self, timeout_s=30.0): print("ready")
    def stop(self): print("stopped")
"""
SCRIPTS: Final = {
    "plain calls": """
env = Echo(base_url=URL)
print(env.reset().done, env.step("hi").observation["echoed_message"], env.state())
env.close()
""",
    "with": """
with Echo(URL) as env:
    env.reset()
    print(env.step("hi", timeout_s=5).reward, env.state())
""",
    "errors": """
with Echo(URL).sync() as env:
    env.reset()
    try:
        env.step(5)
    except RuntimeError as error:
        print(str(error).startswith("Server error: "), "(code: VALIDATION_ERROR)" in str(error))
""",
    "sync": """
with Echo(URL).sync() as env:
    env.reset()
    print(env.say_twice("hi"), env.state(), env.base_url == URL)
    other = env.new_session()
    other.reset()
    other.step("ho")
    print(type(other).__name__, other.state(), env.state())
""",
    "a step of one's own": """
class Named(Echo):
    def step(self, action, **kwargs): return super().step(action, **kwargs)
class Bare(Echo):
    def step(self, action): return super().step(action)
for cls in (Named, Bare):
    with cls(URL).sync() as env:
        env.reset()
        print(env.step("hi").observation["echoed_message"])
""",
    "async": """
async def main():
    async with Echo(URL) as env:
        await env.reset()
        print(await env.say_twice("hi"), await asyncio.create_task(env.state()))
    env = Echo(URL)
    print((await env.reset()).done)
    other = await env.new_session()
    await asyncio.gather(env.step("a"), other.reset())
    print(await env.state(), await other.state())
    await env.close()
    async with GenericEnvClient(base_url=URL) as env:
        await env.reset()
        print((await env.step({"message": "dict"})).observation["message_length"])
asyncio.run(main())
""",
    "plain calls where an event loop runs": """
async def main():
    env = Echo(URL)
    print(env.reset().done, env.step("hi").observation["message_length"], env.state())
    env.close()
asyncio.run(main())
""",
    "a provider of containers": """
env = Echo(provider=Starter())
print(env.base_url)
with env:
    print(env.base_url == URL, env.reset().done)
env.reset()  # again
env.close()
""",
    "a provider of servers": """
async def main():
    async with Echo(provider=Runtime()) as env:
        await env.reset()
        print(await env.state())
asyncio.run(main())
""",
    "a provider that was started": """
async def main():
    env = Echo(base_url=URL, provider=Starter())
    await env.reset()
    await env.close()
asyncio.run(main())
""",
    "what is inside": """
async def main():
    env = Echo(URL)
    print(env._ws, env._ws_url.replace("ws://", "http://").removesuffix("/ws") == URL, env._provider)
    print(env._message_timeout, env._connect_timeout)
    env._message_timeout, env._connect_timeout = 120, 5.0
    await env._ensure_connected()
    env._ws.ping_interval = None
    print(bool(env._ws), env._ws.ping_interval, env._message_timeout, env._connect_timeout)
    print((await env.reset()).done)
    await env.close()
    print(env._ws)
asyncio.run(main())
import websockets
print(websockets.exceptions.ConnectionClosed.__name__)
""",
    "what is inside a client of a provider": """
starter = Starter()
env = Echo(provider=starter)
print(env._ws_url, env._provider is starter)
with env:
    print(env._ws_url.endswith("/ws"), env._provider is starter)
print(env._ws_url)
env = Echo(URL)
env._provider = starter
env.reset()
env.close()
""",
    "what is inside a sync client": """
env = Echo(URL).sync()
print(type(env._async).__name__, env._message_timeout, env._ws)
env.reset()
print(env._loop.is_running(), env._ws is env._async._ws, hasattr(env, "_nothing"))
asyncio.run_coroutine_threadsafe(env._async._ensure_connected(), env._loop).result()
env._ensure_connected()
env._async._message_timeout = 1.5
print(env._message_timeout, env._send_and_receive({"type": "state"})["type"])
env.close()
""",
    "a connection that the server closes": """
import threading, websockets
from websockets.sync.server import serve
def behave(ws):
    ws.recv()
    ws.close(1011, "broken")
with serve(behave, "127.0.0.1", 0) as server:
    threading.Thread(target=server.serve_forever).start()
    url = "http://127.0.0.1:%d" % server.socket.getsockname()[1]
    try:
        Echo(url).sync().reset()
    except websockets.exceptions.ConnectionClosed as error:
        print(type(error).__name__, error.rcvd.code, error.rcvd.reason, error.code, error.reason)
    async def main():
        try:
            await Echo(url).reset()
        except Exception as error:
            print(type(error).__name__)
    asyncio.run(main())
    server.shutdown()
""",
    "neither address nor provider": """
try:
    Echo()
except ValueError as error:
    print(error)
""",
}


def run(python: Path, script: str, environ: dict[str, str]) -> list[str]:
    done = subprocess.run([python, "-c", script], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with envhive_serve("echo") as server:
        yield server.url


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_what_a_client_does_is_what_openenvs_does(script: str, url: str, peer_python: Path) -> None:
    whole = f"URL = {url!r}\n{BEGINNING}{script}"
    ours = run(Path(sys.executable), f"from envhive import compat\ncompat.install()\n{whole}", our_environ())
    assert ours
    assert ours == run(peer_python, whole, clean_environ())
