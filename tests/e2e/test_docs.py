"""The examples of docs/sessions.md and README.md, run as they stand."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.arguments import DEFAULT_TARGET
from tests.kit.server_process import ready_server

ROOT = Path(__file__).parents[2]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with ready_server() as (_server, target):
        yield target


def run_script(text: str, target: str, folder: Path) -> subprocess.CompletedProcess[str]:
    assert DEFAULT_TARGET in text
    script = folder / "examples.py"
    script.write_text(text.replace(DEFAULT_TARGET, target), "utf-8")
    return subprocess.run(
        (sys.executable, str(script)), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_examples_when_run_in_order_then_they_do_what_they_say(target: str, tmp_path: Path) -> None:
    blocks = python_blocks(ROOT / "docs" / "sessions.md")
    assert len(blocks) == 8
    done = run_script("\n".join(blocks), target, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "guesses were right" in done.stdout
    assert "found again 0 times" in done.stdout
    assert "mine " in done.stdout


def test_readme_when_its_example_is_run_then_it_answers(target: str, tmp_path: Path) -> None:
    (block,) = python_blocks(ROOT / "README.md")
    done = run_script(block, target, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout
