"""The rules of style that no linter knows, held against the whole tree; each checker also against a bad sample."""

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
CODE_SUFFIXES = {".py", ".cpp", ".cu", ".h", ".proto"}
TEXT_SUFFIXES = CODE_SUFFIXES | {".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".cfg", ".ini", ""}
PRODUCT_ROOMS = ("engine/", "services/", "telemetry/")
ENTRY_POINT = "services/cli/"
BANNED_NAMES = {"manager", "helper", "helpers", "util", "utils", "common", "misc"}
BROAD_EXCEPTS = {
    "engine/runtime/loop.py": 2,
    "engine/runtime/dumps.py": 1,
    "engine/runtime/watchdog.py": 1,
    "engine/executor/torch_executor.py": 2,
    "services/interceptors.py": 1,
    "telemetry/export/connection.py": 1,
    "telemetry/export/span_exporter.py": 1,
    "telemetry/kv/publisher.py": 1,
}
"""How many each file may have: ADR 5 says what for."""
PROBING_FILES = {"engine/runtime/stacks.py"}
"""Looks at what others await, whatever they were written in."""
BROAD = {"Exception", "BaseException"}

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
IGNORE = re.compile(r"#\s*type:\s*ignore")
IGNORE_WITH_REASON = re.compile(r"#\s*type:\s*ignore\[[a-z0-9, -]+\]\s+#\s*\w")
BARE_NOQA = re.compile(r"#\s*noqa(?!:\s*[A-Z]+[0-9]+)", re.IGNORECASE)
REGISTRY_URL = re.compile(
    r"https?://(?!localhost\b|127\.|\[::1\])[^\s\"'<>)]*"
    r"(pypi|pythonhosted|download\.pytorch|huggingface|anaconda|npmjs|artifactory|nexus|/simple\b)",
    re.IGNORECASE,
)

Checker = Callable[[str, str], list[str]]
"""Path from the root, text of the file -> findings."""


def is_generated(path: str) -> bool:
    return re.search(r"_pb2(_grpc)?\.pyi?$", path) is not None


def check_file_length(path: str, text: str) -> list[str]:
    num_lines = len(text.splitlines())
    is_bound = PurePosixPath(path).suffix in CODE_SUFFIXES
    return [f"{num_lines} lines, at most {FILE_LINES_MAX}"] if is_bound and num_lines > FILE_LINES_MAX else []


def check_names(path: str, _text: str) -> list[str]:
    words = {word for part in PurePosixPath(path).parts for word in PurePosixPath(part).stem.split("_")}
    return [f"named {word}" for word in sorted(words & BANNED_NAMES)]


def check_registry(_path: str, text: str) -> list[str]:
    return [f"names a package registry: {found.group()}" for found in REGISTRY_URL.finditer(text)]


def check_unfinished_text(path: str, text: str) -> list[str]:
    if PurePosixPath(path).suffix == ".py":
        return []
    return [f"unfinished: {found.group()}" for found in UNFINISHED.finditer(text)]


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def check_comments(_path: str, text: str) -> list[str]:
    findings: list[str] = []
    for line, comment in comments(text):
        if UNFINISHED.search(comment):
            findings.append(f"{line}: unfinished")
        if IGNORE.search(comment) and not IGNORE_WITH_REASON.search(comment):
            findings.append(f"{line}: type: ignore without code and reason")
        if BARE_NOQA.search(comment):
            findings.append(f"{line}: noqa without code")
    return findings


def check_docstrings(_path: str, text: str) -> list[str]:
    tree = ast.parse(text)
    findings = [] if ast.get_docstring(tree) else ["module without docstring"]
    return findings + [f"unfinished: {doc}" for doc in docstrings(tree) if UNFINISHED.search(doc)]


def check_function_length(path: str, text: str) -> list[str]:
    if not path.startswith(PRODUCT_ROOMS):
        return []
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]
    return [
        f"{name}: {length} lines, at most {FUNCTION_LINES_MAX}"
        for name, length in lengths
        if length > FUNCTION_LINES_MAX
    ]


def is_broad(node: ast.AST) -> bool:
    match node:
        case ast.ExceptHandler(type=None):
            return True
        case ast.ExceptHandler(type=ast.expr() as caught):
            names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
            return any(isinstance(name, ast.Name) and name.id in BROAD for name in names)
        case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=names):
            return any(isinstance(name, ast.Name) and name.id in BROAD for name in names)
    return False


def check_broad_except(path: str, text: str) -> list[str]:
    lines = [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.expr | ast.excepthandler) and is_broad(node)
    ]
    allowed = BROAD_EXCEPTS.get(path, 0)
    return [f"{line}: catches everything" for line in sorted(lines)[allowed:]]


def check_probing(path: str, text: str) -> list[str]:
    """No asking an object what it has. A dataclass may still walk its own fields: `getattr(self, name)`."""
    if not path.startswith("engine/") or path in PROBING_FILES:
        return []
    findings: list[str] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id="self"), _]):
                continue
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" as name)):
                findings.append(f"{node.lineno}: {name}")
    return findings


def check_environment(path: str, text: str) -> list[str]:
    if not path.startswith(PRODUCT_ROOMS) or path.startswith(ENTRY_POINT):
        return []
    findings: list[str] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "getenv" | "environb"):
                findings.append(f"{node.lineno}: reads the environment")
            case ast.ImportFrom(module="os", names=names) if {n.name for n in names} & {"environ", "getenv"}:
                findings.append(f"{node.lineno}: reads the environment")
    return findings


TEXT_CHECKERS: tuple[Checker, ...] = (check_file_length, check_names, check_registry, check_unfinished_text)
PYTHON_CHECKERS: tuple[Checker, ...] = (
    check_comments,
    check_docstrings,
    check_function_length,
    check_broad_except,
    check_probing,
    check_environment,
)


def tree_files() -> list[str]:
    """Paths of what is tracked, or would be; of everything visible where there is no git directory."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    else:
        listed = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*")]
        listed = [path for path in listed if not any(part.startswith((".", "__pycache__")) for part in path.split("/"))]
    is_ours = (path for path in listed if not is_generated(path) and (ROOT / path).is_file())
    return sorted(path for path in is_ours if PurePosixPath(path).suffix in TEXT_SUFFIXES)


def test_tree_when_searched_then_sources_of_every_room_are_found() -> None:
    rooms = Counter(path.split("/")[0] for path in tree_files() if path.endswith(".py"))
    assert all(rooms[room] > 0 for room in ("engine", "services", "telemetry", "protos", "tests")), rooms


@pytest.mark.parametrize("checker", TEXT_CHECKERS, ids=lambda checker: checker.__name__)
def test_text_when_checked_then_nothing_is_found(checker: Checker) -> None:
    assert find_all(checker, tree_files()) == []


@pytest.mark.parametrize("checker", PYTHON_CHECKERS, ids=lambda checker: checker.__name__)
def test_python_when_checked_then_nothing_is_found(checker: Checker) -> None:
    assert find_all(checker, [path for path in tree_files() if path.endswith(".py")]) == []


def find_all(checker: Checker, paths: list[str]) -> list[str]:
    return [f"{path}: {found}" for path in paths for found in checker(path, (ROOT / path).read_text("utf-8"))]


SCHEME_END = "://"
"""Apart, so that this file names no registry itself."""
BAD: list[tuple[Checker, str, str]] = [
    (check_file_length, "engine/a.py", "x = 1\n" * 401),
    (check_file_length, "protos/v1/a.proto", "//\n" * 401),
    (check_names, "engine/utils/a.py", ""),
    (check_names, "services/session_manager.py", ""),
    (check_registry, "README.md", f"pip install -i https{SCHEME_END}pypi.example/simple x"),
    (check_registry, "a.toml", f'url = "http{SCHEME_END}mirror.example/simple/"'),
    (check_unfinished_text, "README.md", "TODO: write"),
    (check_comments, "a.py", "x = 1  # FIXME later\n"),
    (check_comments, "a.py", "x = 1  # type: ignore\n"),
    (check_comments, "a.py", "x = 1  # type: ignore[misc]\n"),
    (check_comments, "a.py", "x = 1  # noqa\n"),
    (check_docstrings, "a.py", "x = 1\n"),
    (check_docstrings, "a.py", '"""A module."""\ndef f():\n    """TODO."""\n'),
    (check_function_length, "engine/a.py", "def f():\n" + "    x = 1\n" * 60),
    (check_function_length, "services/a.py", "async def f():\n" + "    x = 1\n" * 60),
    (check_broad_except, "engine/a.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
    (check_broad_except, "engine/a.py", "try:\n    f()\nexcept:\n    pass\n"),
    (check_broad_except, "tests/a.py", "try:\n    f()\nexcept (KeyError, BaseException):\n    pass\n"),
    (check_broad_except, "services/a.py", "with contextlib.suppress(Exception):\n    f()\n"),
    (check_broad_except, "engine/runtime/loop.py", "try:\n    f()\nexcept Exception:\n    pass\n" * 3),
    (check_probing, "engine/a.py", "getattr(x, 'y', None)\n"),
    (check_probing, "engine/a.py", "getattr(self, 'y', None)\n"),
    (check_probing, "engine/a.py", "hasattr(x, 'y')\n"),
    (check_environment, "engine/a.py", "import os\nos.environ['A']\n"),
    (check_environment, "services/config/a.py", "from os import getenv\n"),
]
GOOD: list[tuple[Checker, str, str]] = [
    (check_file_length, "engine/a.py", "x = 1\n" * 400),
    (check_names, "engine/core/radix.py", ""),
    (check_registry, "README.md", "http://127.0.0.1:8080/simple and https://www.apache.org/licenses/"),
    (check_comments, "a.py", "x = 1  # type: ignore[misc]  # the plugin has no types\ny = 2  # noqa: E501\n"),
    (check_comments, "a.py", 'x = "# noqa"\n'),
    (check_function_length, "engine/a.py", "def f():\n" + "    x = 1\n" * 59),
    (check_broad_except, "engine/runtime/loop.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
    (check_broad_except, "engine/a.py", "try:\n    f()\nexcept KeyError:\n    pass\n"),
    (check_probing, "services/a.py", "getattr(x, 'y', None)\n"),
    (check_probing, "engine/a.py", "getattr(self, name)\n"),
    (check_environment, "services/cli/main.py", "import os\nos.environ['A']\n"),
]


@pytest.mark.parametrize(("checker", "path", "text"), BAD)
def test_checker_when_sample_is_bad_then_says_so(checker: Checker, path: str, text: str) -> None:
    assert len(checker(path, text)) == 1


@pytest.mark.parametrize(("checker", "path", "text"), GOOD)
def test_checker_when_sample_is_good_then_is_silent(checker: Checker, path: str, text: str) -> None:
    assert checker(path, text) == []
