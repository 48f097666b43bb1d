"""`docs/field_reports.md` and the tests say the same of each report."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "field_reports.md").read_text("utf-8")
ROW = re.compile(r"^\| ([A-Z]{3}-\d{2}) \| (\S+#\d+) \| (.+?) \|", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)`: `(test_\w+)`")
CITED = re.compile(r"([A-Z]{3}-\d{2}) \(([\w.-]+/[\w.-]+#\d+)\)")


def docstrings(path: Path) -> dict[str, str]:
    """Name of each test of a file → what it says of itself."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {it.name: ast.get_docstring(it) or "" for it in functions if it.name.startswith("test_")}


def find(file: str) -> Path:
    return TESTS / file if "/" in file else HERE / file


def test_page_when_read_then_each_row_names_tests_that_are_there_and_cite_its_report() -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) == 74
    for row, report, cell in rows:
        named = TEST.findall(cell)
        assert named, f"{row} has no test"
        for file, test in named:
            assert f"{row} ({report})" in docstrings(find(file))[test], f"{row}: {test}"


def test_tests_when_they_cite_a_report_then_the_page_has_it() -> None:
    told = {(row, report): cell for row, report, cell in ROW.findall(PAGE)}
    for path in HERE.glob("test_*.py"):
        for test, said in docstrings(path).items():
            for cited in CITED.findall(said):
                assert f"`{test}`" in told[cited], f"{test} is not named beside {cited[0]}"


def test_scenarios_when_read_then_all_eleven_are_there() -> None:
    said = docstrings(HERE / "test_scenarios.py")
    assert all(f"`{test}`" in PAGE for test in said)
    numbers = {
        int(number)
        for text in said.values()
        for number in re.findall(r"Scenario (\d+):|Scenario (\d+)\.", text)
        for number in number
        if number
    }
    assert numbers == set(range(1, 12))
