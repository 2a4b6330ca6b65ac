"""Publishing an environment's folder as a Hugging Face Space. Needs `envhive[hub]`."""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from envhive.errors import ConfigurationError

IGNORED: Final = (
    *(".git", ".venv", "venv", "node_modules", "__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache", ".cache"),
    *("*.pyc", "*.egg-info", "dist", "build", ".DS_Store", ".env", ".env.*", "*.pem", "*.key", "id_rsa*"),
)
"""Names that are never uploaded: what tools leave behind, and where people keep secrets."""

_REPO_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
_SETTING: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Upload:
    """What is to be published, and how: exactly this, and nothing else."""

    repo_id: str
    files: dict[str, Path]
    """By the path that each has in the Space."""
    private: bool = False
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        folder: Path,
        repo_id: str,
        *,
        private: bool = False,
        secrets: dict[str, str] | None = None,
        variables: dict[str, str] | None = None,
    ) -> Upload:
        """Plan an upload; raises `ConfigurationError` with what is wrong."""
        if not _REPO_ID.fullmatch(repo_id):
            raise ConfigurationError(f"{repo_id!r} is no name of a Space: write USER/NAME.")
        files = files_to_upload(folder)
        if not files:
            raise ConfigurationError(f"There is nothing to upload in {folder}.")
        return cls(repo_id, files, private, dict(secrets or {}), dict(variables or {}))

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())


def files_to_upload(folder: Path) -> dict[str, Path]:
    """The files of a folder, by their path in the Space. Links that lead out of the folder are left out."""
    root = folder.resolve()
    found: dict[str, Path] = {}
    for place, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not _is_ignored(name))
        for name in sorted(files):
            path = Path(place, name)
            if not _is_ignored(name) and path.is_file() and path.resolve().is_relative_to(root):
                found[path.relative_to(root).as_posix()] = path
    if "Dockerfile" not in found and "server/Dockerfile" in found:
        found["Dockerfile"] = found["server/Dockerfile"]  # a Space is built from the one at the top
    return dict(sorted(found.items()))


def _is_ignored(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in IGNORED)


def parse_setting(text: str, *, from_environment: bool) -> tuple[str, str]:
    """`NAME=VALUE`; or `NAME` alone, whose value is taken from the environment variable of that name.

    Example:
        >>> parse_setting("LEVEL=3", from_environment=False)
        ('LEVEL', '3')
    """
    name, equals, value = text.partition("=")
    if not _SETTING.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no name of a variable: write NAME=VALUE.")
    if equals:
        return name, value
    if from_environment and name in os.environ:
        return name, os.environ[name]
    raise ConfigurationError(
        f"{name} has no value: write {name}=VALUE"
        + (f", or set the environment variable {name}." if from_environment else ".")
    )


def publish(upload: Upload) -> str:
    """Make the Space if it is not there, set its secrets and variables, and upload the files. Returns its address."""
    try:
        from huggingface_hub import CommitOperationAdd, HfApi, errors
    except ImportError:
        raise ConfigurationError("Publishing needs huggingface_hub: pip install 'envhive[hub]'") from None
    api = HfApi()
    try:
        made = api.create_repo(
            upload.repo_id, repo_type="space", space_sdk="docker", private=upload.private, exist_ok=True
        )
        for name, value in upload.secrets.items():
            api.add_space_secret(upload.repo_id, name, value)
        for name, value in upload.variables.items():
            api.add_space_variable(upload.repo_id, name, value)
        operations = [CommitOperationAdd(path, str(file)) for path, file in upload.files.items()]
        api.create_commit(upload.repo_id, operations, commit_message="Upload with envhive push", repo_type="space")
    except errors.HfHubHTTPError as error:
        raise ConfigurationError(_explain(error)) from None
    # Where there is no way to the Hub. Since 1.0 the library names its HTTP error; before, that was an OSError.
    except (getattr(errors, "HTTPError", OSError), OSError) as error:
        raise ConfigurationError(
            f"The Hub could not be reached: {error}. Try again; nothing is lost by doing it twice."
        ) from None
    return str(made)


def _explain(error: Any) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    said = " ".join(str(getattr(error, "server_message", None) or error).split())
    if status == 401:
        return f"The Hub does not know you ({said}): run `hf auth login`, or set HF_TOKEN."
    if status == 403:
        return (
            f"The Hub does not let you write there ({said}): take a --repo-id of your own, and a token that may write."
        )
    return f"The Hub answered {status}: {said}"
