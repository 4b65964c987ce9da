"""Fixtures, and the header line that names the tested provider."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness
import jobs


def pytest_report_header() -> list[str]:
    """Names the provider, its library and its build, and says whether jobs run in sandboxes."""
    library = jobs.DIST / "libweft-fi.so"
    state = "present" if library.exists() else "MISSING: run make"
    return [f"provider {harness.PROVIDER}; {library} ({state}); {harness.sandbox_refusal() or 'jobs run in sandboxes'}"]


@pytest.fixture
def runner(request: pytest.FixtureRequest) -> harness.Runner:
    """Runs the jobs of one test. Its directory is in the target directory, since sandboxes hide /tmp."""
    name = "".join(char if char.isalnum() else "-" for char in request.node.name)
    directory: Path = jobs.TARGET / "tests" / "run" / name
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    return harness.Runner(directory)
