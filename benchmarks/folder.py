"""What the same unmodified folder costs under OpenEnv and under EnvHive: server CPU per step, side by side.

    python benchmarks/folder.py FOLDER APP_DIR APP ACTION

FOLDER is an environment written for OpenEnv; APP_DIR and APP are what its author gives to uvicorn; ACTION is a JSON
object. Its own code must allow as many sessions as are asked for. Both servers run on one core, and get the same load
in turn, round after round, from another. OpenEnv is installed into a virtual environment of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

import envhive
from envhive.bench import peers, servers
from envhive.bench.limits import cores
from envhive.bench.load import LoadFleet
from envhive.bench.plan import SteadyPlan
from envhive.bench.records import SteadyWindow
from envhive.bench.steady import measure_window
from envhive.bench.subject import Subject


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("folder", "app_dir", "app", "action"):
        arguments.add_argument(name)
    arguments.add_argument("--sessions", type=int, nargs="+", default=[64, 512])
    arguments.add_argument("--seconds", type=float, default=4.0)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    print(f"| {' | '.join(['sessions', 'openenv 0.10.0', 'EnvHive', 'ours/peer', 'steps/s, peer', 'steps/s, ours'])} |")
    print("|---|---|---|---|---|---|")
    server_cores, load_cores = cores()[:1], cores()[1:2]
    with (
        Subject(recipe=under_openenv(given.app_dir, given.app), pinned_to=server_cores) as theirs,
        Subject(recipe=under_envhive(given.folder, max(given.sessions)), pinned_to=server_cores) as ours,
        LoadFleet(load_cores) as fleet,
    ):
        plan = SteadyPlan(seconds=given.seconds, action=given.action)
        for sessions in given.sessions:
            windows: dict[str, list[SteadyWindow]] = {"theirs": [], "ours": []}
            for turn in range(1, given.rounds + 1):
                for name, subject in (("theirs", theirs), ("ours", ours)):
                    window = measure_window(plan, sessions, turn, subject, fleet, 1, lambda done, failed: None)
                    if window.errors:
                        raise SystemExit(f"{name}: {window.errors}")
                    windows[name].append(window)
            print(row(sessions, windows["theirs"], windows["ours"]))


def row(sessions: int, theirs: list[SteadyWindow], ours: list[SteadyWindow]) -> str:
    cost, our_cost = (median(each.cpu_us_per_step or 0.0 for each in windows) for windows in (theirs, ours))
    rate, our_rate = (median(each.steps / each.seconds for each in windows) for windows in (theirs, ours))
    share = f"1/{cost / our_cost:.1f}"
    return f"| {sessions} | {cost:.1f} µs | {our_cost:.1f} µs | {share} | {rate:,.0f} | {our_rate:,.0f} |"


def under_openenv(app_dir: str, app: str) -> servers.Recipe:
    python = peers.install(peers.PEERS["openenv"], print)
    options = ["--app-dir", str(Path(app_dir).resolve()), "--host", "127.0.0.1", "--log-level", "warning"]
    return servers.Recipe(
        "openenv", lambda port: [str(python), "-m", "uvicorn", app, *options, "--port", str(port)], {}, 1
    )


def under_envhive(folder: str, max_sessions: int) -> servers.Recipe:
    recipe = servers.envhive(str(Path(folder).resolve()), max_sessions=max_sessions)
    source = str(Path(envhive.__file__).parents[1])  # the code that this script runs with, whatever is installed
    return servers.Recipe(recipe.name, recipe.command, {"PYTHONPATH": source}, 1)


if __name__ == "__main__":
    main()
