"""What a release needs: one version, workflows, a Dockerfile. No test here builds an image."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import inf

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^bash install\.sh && .+$", README, re.M)


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_changelog_begins_with_the_version() -> None:
    first = re.search(r"^## (.+?), (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert first and first[1] == inf.__version__
    assert first[2] == "not released" or re.fullmatch(r"\d{4}-\d\d-\d\d", first[2])


@pytest.mark.parametrize(
    ("tag", "heading", "passes"),
    [
        ("v1.2.3", "## 1.2.3, 2026-12-01", True),
        ("v1.2.4", "## 1.2.3, 2026-12-01", False),
        ("v1.2.3", "## 1.2.3, not released", False),
        ("v1.2.3", "## 1.2.2, 2026-12-01\n\n## 1.2.3, 2026-12-01", False),
    ],
)
def test_release_needs_its_tag_in_the_package_and_first_in_the_changelog(
    tag: str, heading: str, passes: bool, tmp_path: Path
) -> None:
    (tmp_path / "_inf").mkdir()
    (tmp_path / "_inf" / "__init__.py").write_text('"""Doc."""\n\n__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")
    steps = steps_of(ROOT / ".github" / "workflows" / "release.yml")
    (script,) = [step["run"] for step in steps if "agree" in step.get("name", "")]
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],  # as GitHub does
        cwd=tmp_path,
        env=os.environ | {"GITHUB_REF_NAME": tag},
        capture_output=True,
    )
    assert (done.returncode == 0) is passes


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_pins_its_actions_and_gives_no_right_to_write(workflow: Path) -> None:
    for step in steps_of(workflow):
        assert re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", step.get("uses", "a/b@v1.0.0"))
    written = yaml.safe_load(workflow.read_text())
    rights = [written["permissions"], *(job.get("permissions") for job in written["jobs"].values())]
    granted = {name for each in rights if each for name, level in each.items() if level == "write"}
    assert granted <= {"id-token"}


def test_image_and_workflows_run_the_commands_of_the_readme() -> None:
    answer, test = (next(c for c in COMMANDS if part in c) for part in (".venv/bin/inf", "pytest"))
    stages = (ROOT / "Dockerfile").read_text().partition("AS tests")
    assert f"\nRUN {answer}\n" in stages[0] and f"\nRUN {test}\n" in stages[2]
    assert "\nUSER 1000\n" in stages[0] and "USER" not in stages[2]
    runs = [step.get("run") for workflow in WORKFLOWS for step in steps_of(workflow)]
    assert test in runs and "bash .ci/run" in runs


def test_page_on_installing_builds_stages_that_there_are() -> None:
    stages = re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.M)
    page = (ROOT / "docs" / "install.md").read_text()
    assert {*re.findall(r"--target (\w+)", page)} == {*stages} == {"inf", "tests"}


def test_image_gets_nothing_that_git_ignores() -> None:
    ignored = (ROOT / ".gitignore").read_text().split()
    left_out = (ROOT / ".dockerignore").read_text().split()
    for name in ignored:
        assert {name.strip("/"), f"**/{name.strip('/')}"} & set(left_out), name
    assert ".git" in left_out
