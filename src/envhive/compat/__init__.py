"""Running environments that were written for OpenEnv, with none of their files changed.

`install()` lets this process import OpenEnv's names and get EnvHive's; `envhive serve` calls it before it loads a
folder or a module. `names` is the table. The other modules hold what EnvHive has under no name of its own.
"""

from envhive.compat.hook import NotMappedError, install, uninstall

__all__ = ["NotMappedError", "install", "uninstall"]
