"""`envhive list`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from envhive.cli import main
from envhive.envs import SHIPPED, Shipped


def test_every_environment_is_listed_with_what_it_needs_and_whether_that_is_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wonder = Shipped(
        "nowhere:Wonder", "a wonder", "wonders", ("json", "no_such_module"), (("no-such-name", "sh"),), "no-such-wall"
    )
    monkeypatch.setitem(SHIPPED, "wonder", wonder)
    monkeypatch.setitem(SHIPPED, "ready", Shipped("nowhere:Ready", "is ready", modules=("json",)))
    shown = CliRunner().invoke(main, ["list"])
    assert shown.exit_code == 0
    assert all(name in shown.output for name in SHIPPED)
    needs = "needs json, no_such_module, no-such-name: missing no_such_module. pip install 'envhive[wonders]'"
    assert needs in shown.output
    assert "better with no-such-wall: not installed" in shown.output
    assert "needs json: installed" in shown.output
    listed = {each["name"]: each for each in json.loads(CliRunner().invoke(main, ["list", "--json"]).output)}
    assert (listed["echo"]["needs"], listed["echo"]["missing"]) == ([], [])
    assert listed["wonder"]["missing"] == ["no_such_module"]


def test_a_setting_that_is_none_is_refused_in_one_line() -> None:
    refused = CliRunner().invoke(main, ["serve", "echo", "--set", "level"])
    assert refused.exit_code == 2
    assert "'level' is not NAME=VALUE" in refused.output
