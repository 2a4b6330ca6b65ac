import asyncio

from openenv.core.env_server import Action, Environment, Observation, State


class Order(Action):
    dish: str
    pays: float = 0.0


class Served(Observation):
    dish: str = ""
    tab: float = 0.0


class TavernEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__(transform=None)
        self.tab = 0.0

    def reset(self, **kwargs):
        raise NotImplementedError

    def step(self, action, **kwargs):
        raise NotImplementedError

    async def reset_async(self, seed=None, episode_id=None, **kwargs):
        await asyncio.sleep(0)
        self.tab = 0.0
        return Served()

    async def step_async(self, action: Order, timeout_s=None, **kwargs):
        await asyncio.sleep(0)
        self.tab += 2.5 - action.pays
        return Served(dish=action.dish, tab=self.tab, reward=-self.tab, done=self.tab <= 0)

    @property
    def state(self):
        return State(tab=self.tab)
