"""Models by name: found in packages that are not imported, or told what to install."""

import sys
from pathlib import Path

import pytest

from engine.executor.gguf import open_gguf
from engine.executor.model_files import (
    MODELS,
    FoundModel,
    ModelNotFoundError,
    PackagedModel,
    find_embedded_model,
    find_model,
    find_packaged,
    is_there,
)
from tests.kit.gguf_files import write_gguf

SPLIT = PackagedModel(
    "Split", (("split_one", "data/x.gguf.part0"), ("split_two", "data/x.gguf.part1")), "the extra 'split'"
)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that packages are found in."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def add_package(folder: Path, name: str, file: str, content: bytes) -> Path:
    """A package that may not be imported, with one file."""
    path = folder / name / file
    path.parent.mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise AssertionError('was imported')\n")
    path.write_bytes(content)
    return path


def test_find_when_a_model_comes_in_parts_then_are_they_read_as_one_file_where_they_are(packages: Path) -> None:
    whole = write_gguf(packages / "x.gguf", {"general.name": "in parts"}).read_bytes()
    one = add_package(packages, "split_one", "data/x.gguf.part0", whole[:20])
    two = add_package(packages, "split_two", "data/x.gguf.part1", whole[20:])
    first, *rest = find_packaged(SPLIT)
    assert (first, rest) == (one, [two])
    assert open_gguf(first, rest).metadata == {"general.name": "in parts"}
    assert not {"split_one", "split_two"} & sys.modules.keys()


def test_find_when_a_part_is_missing_then_says_what_to_install(packages: Path) -> None:
    add_package(packages, "split_one", "data/x.gguf.part0", b"GGUF")
    with pytest.raises(
        ModelNotFoundError, match=r"^Split: no data/x\.gguf\.part1 in the package split_two: install the extra 'split'$"
    ):
        find_packaged(SPLIT)


def test_find_when_gemma_is_not_installed_then_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ModelNotFoundError, match=r"Gemma 3 270M: .* install the extra 'gemma'"):
        find_model(Path("gemma3"))


def test_find_when_nothing_is_asked_for_then_is_the_embedded_model() -> None:
    found = find_model(None)
    assert found == find_model(Path("smollm2"))
    assert found == FoundModel(find_embedded_model(), (), "SmolLM2-135M-Instruct")


def test_find_when_a_path_has_the_name_of_a_model_then_is_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_there(Path("gemma3"))
    Path("gemma3").mkdir()
    assert find_model(Path("gemma3")) == FoundModel(Path("gemma3"))


def test_find_when_it_is_neither_path_nor_name_then_is_refused(tmp_path: Path) -> None:
    absent = tmp_path / "gemma3"
    assert not is_there(absent)
    with pytest.raises(ModelNotFoundError, match="no model has that name"):
        find_model(absent)


def test_models_when_named_then_have_a_name_for_people_and_parts() -> None:
    assert set(MODELS) == {"gemma3", "smollm2"}
    for model in MODELS.values():
        assert model.name
        assert model.parts
