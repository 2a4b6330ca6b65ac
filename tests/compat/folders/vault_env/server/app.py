import functools
import os

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import ConcurrencyConfig
from server.vault import Dial, Vault, VaultView


def make_vault(combination: tuple[int, ...], tries: int) -> Vault:
    return Vault(combination, tries=tries)


app = create_app(
    functools.partial(make_vault, (1, 2, 3), tries=int(os.environ.get("VAULT_TRIES", "2"))),
    Dial,
    VaultView,
    env_name="vault",
    concurrency_config=ConcurrencyConfig(max_concurrent_envs=4, session_timeout=600),
)
