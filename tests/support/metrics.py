"""Reading /metrics as Prometheus does."""

from __future__ import annotations

import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """What /metrics said."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of all series of that name with these labels; 0 if there is none yet."""
        return sum(s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items())


def get(url: str, **headers: str) -> tuple[str, str]:
    """The text, and its content type."""
    with urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", headers=headers), timeout=10) as reply:
        return reply.read().decode(), reply.headers["content-type"]


def scrape(server: Any, **headers: str) -> Scrape:
    """Ask a server that has a `url`."""
    return Scrape(get(server.url, **headers)[0])
