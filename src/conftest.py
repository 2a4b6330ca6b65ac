"""Which modules pytest does not look through for examples: those whose packages are not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("browsergym") else ["envhive/envs/browsergym/*"]
