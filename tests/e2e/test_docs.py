"""The examples of docs/sessions.md, run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

from tests.kit.server_process import ready_server

ROOT = Path(__file__).parents[2]


def test_examples_when_run_in_order_then_they_do_what_they_say(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "sessions.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    with ready_server() as (_server, target):
        script = tmp_path / "examples.py"
        script.write_text("\n".join(blocks).replace("127.0.0.1:50051", target), "utf-8")
        done = subprocess.run(
            (sys.executable, str(script)), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "found again 0 times" in done.stdout
    assert "mine " in done.stdout
