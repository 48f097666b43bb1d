"""Writes the code generated from protos/v1, or with --check says where it differs from what is committed.

Run from the root of the repository, so that the modules are `protos.v1.*`: python protos/generate.py [--check]
"""

import argparse
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("protos/v1")
PATTERN = "*_pb2*.py*"
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")


def generate(target: Path) -> None:
    """Writes all modules under `target`/protos/v1. Raises RuntimeError when protoc refuses the sources."""
    scripts = Path(sys.executable).parent
    sources = sorted((ROOT / FOLDER).glob("*.proto"))
    arguments = [
        "protoc",
        f"--proto_path={ROOT}",
        f"--proto_path={files('grpc_tools') / '_proto'}",
        *(f"--plugin={plugin}={scripts / plugin}" for plugin in PLUGINS),
        *(f"--{kind}_out={target}" for kind in ("python", "grpc_python")),
        *(f"--{kind}_out=quiet:{target}" for kind in ("mypy", "mypy_grpc")),
        *(str(source.relative_to(ROOT)) for source in sources),
    ]
    status = protoc.main(arguments)
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")


def read_generated(root: Path) -> dict[str, str]:
    """Name and text of every generated file under `root`/protos/v1."""
    return {path.name: path.read_text("utf-8") for path in (root / FOLDER).glob(PATTERN)}


def find_drift(fresh: dict[str, str], committed: dict[str, str]) -> list[str]:
    """Names of the files that are missing, left over or different, in order."""
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


def main() -> int:
    """Returns the exit status: 1 when --check found a difference."""
    parser = argparse.ArgumentParser(description="Code generated from protos/v1.")
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    is_check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        fresh_root = Path(folder)
        generate(fresh_root)
        drift = find_drift(read_generated(fresh_root), read_generated(ROOT))
        if not is_check:
            for old in (ROOT / FOLDER).glob(PATTERN):
                old.unlink()
            for new in (fresh_root / FOLDER).glob(PATTERN):
                shutil.copyfile(new, ROOT / FOLDER / new.name)
    verb = "differs, run `make proto`" if is_check else "written"
    sys.stdout.writelines(f"{FOLDER / name}: {verb}\n" for name in drift)
    return 1 if is_check and drift else 0


if __name__ == "__main__":
    sys.exit(main())
