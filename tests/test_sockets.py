"""Folders for Unix sockets."""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from envhive import sockets
from envhive.errors import ConfigurationError
from envhive.sockets import folder_for_sockets


def test_the_folder_is_where_temporary_files_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = folder_for_sockets("envhive-", "7.http")
    assert (folder.parent, folder.stat().st_mode & 0o777, list(folder.iterdir())) == (tmp_path, 0o700, [])


def test_it_is_elsewhere_if_its_path_would_be_too_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = folder_for_sockets("envhive-", "7.http")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "7.http"))
        assert not list(long.iterdir())
    finally:
        shutil.rmtree(folder)


def test_if_there_is_no_place_for_it_the_user_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setattr(sockets, "SHORT_PLACES", (str(tmp_path / "nowhere"),))
    with pytest.raises(ConfigurationError, match="set TMPDIR"):
        folder_for_sockets("envhive-", "7.http")
