"""What a validation found, stage by stage."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from envhive.checks import Finding, Report

StageName = Literal["static", "contract", "live"]
STAGES: Final[dict[StageName, str]] = {
    "static": "the folder as it lies there",
    "contract": "the environment's own promises",
    "live": "a server, as trainers use it",
}


@dataclass(slots=True)
class Validation:
    """What was found of a subject in each stage."""

    subject: str
    stages: dict[StageName, Report] = field(default_factory=dict)

    def stage(self, name: StageName) -> Report:
        """The report of a stage, which begins now if it has not."""
        return self.stages.setdefault(name, Report(self.subject))

    @property
    def findings(self) -> list[Finding]:
        return [finding for report in self.stages.values() for finding in report.findings]

    def ok(self, *, strict: bool = False) -> bool:
        """Whether nothing is wrong; strictly: not even a warning."""
        return not any(strict or finding.level == "error" for finding in self.findings)

    def as_json(self, *, strict: bool = False) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "ok": self.ok(strict=strict),
            "errors": sum(finding.level == "error" for finding in self.findings),
            "warnings": sum(finding.level == "warning" for finding in self.findings),
            "stages": {
                name: {
                    "ok": report.ok,
                    "passed": report.passed,
                    "findings": [asdict(finding) for finding in report.findings],
                    "skipped": report.skipped,
                }
                for name, report in self.stages.items()
            },
        }
