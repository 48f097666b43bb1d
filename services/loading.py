"""Reads a model file into what a backend needs, off the event loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from engine.executor.device_faults import DeviceFaults
from engine.executor.gguf import GgufError, open_gguf
from engine.executor.gguf_config import config_from_gguf
from engine.executor.hf_config import open_hf_config
from engine.executor.hf_files import HfFileError
from engine.executor.model_config import UnsupportedModelError
from engine.executor.model_files import FoundModel, ModelNotFoundError, find_model
from engine.executor.pool_size import NoRoomError, PoolSettingError
from engine.executor.protocol import Executor
from services.config import ServeConfig
from services.tokenization.chat import ChatTemplate, ChatTemplateError, chat_template_from_gguf
from services.tokenization.hf_directory import chat_template_from_hf, tokenizer_from_hf
from services.tokenization.tokenizer import Tokenizer, tokenizer_from_gguf

Progress = Callable[[float, str], None]
"""Called with the done fraction, 0 to 1, and what is being done; from the loading thread."""

LOAD_ERRORS = (
    GgufError,
    HfFileError,
    UnsupportedModelError,
    ModelNotFoundError,
    ChatTemplateError,
    NoRoomError,
    PoolSettingError,
    OSError,
    MemoryError,
)
"""What `load_model` raises when the model or the machine, and not the server, is at fault."""


class LoadingCrashed(Exception):
    """Loading failed for a reason that is not the model's."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    executor: Executor
    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()
    """What people should be told of it at start, a line each."""
    device_faults: DeviceFaults | None = None
    """Where forwards are made to go wrong; None: they can not be."""


Loader = Callable[[ServeConfig, Progress], Awaitable[LoadedModel]]


@dataclass(frozen=True, slots=True)
class _Texts:
    """What a model's files say of its texts."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos_ids: tuple[int, ...]


def load_model(config: ServeConfig, progress: Progress) -> LoadedModel:
    """A directory is read as Hugging Face lays models out, a file as GGUF. Blocks for seconds. Raises one of
    LOAD_ERRORS."""
    found = find_model(config.model)
    progress(0.0, "reading the tokenizer")
    texts = _read_hf(found.path) if found.path.is_dir() else _read_gguf(found)
    # Imported here: torch takes seconds to import, and the port answers meanwhile.
    from engine.executor.loading import load_executor

    faults = DeviceFaults() if config.fault_injection else None
    loaded = load_executor(
        found.path,
        rest=found.rest,
        pool=config.pools(),
        num_rows=config.rows + 1,
        threads=config.threads,
        progress=progress,
        name=found.name,
        faults=faults,
    )
    return LoadedModel(loaded.executor, texts.tokenizer, texts.template, texts.eos_ids, loaded.notes, faults)


def _read_gguf(found: FoundModel) -> _Texts:
    file = open_gguf(found.path, found.rest)
    tokenizer = tokenizer_from_gguf(file)
    return _Texts(tokenizer, chat_template_from_gguf(file, tokenizer), config_from_gguf(file).eos_ids)


def _read_hf(directory: Path) -> _Texts:
    model = open_hf_config(directory)
    tokenizer = tokenizer_from_hf(directory, model.count("vocab_size"))
    return _Texts(tokenizer, chat_template_from_hf(directory, tokenizer), model.eos_ids)


async def load_in_thread(config: ServeConfig, progress: Progress) -> LoadedModel:
    """`load_model` in a thread that does not keep the process alive, so that a signal while loading ends it at once.

    Raises what `load_model` does, or LoadingCrashed after a fault of ours, whose traceback goes to standard error.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[LoadedModel] = loop.create_future()

    def settle(outcome: LoadedModel | Exception) -> None:
        if done.done():
            return
        if isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    def run() -> None:
        outcome: LoadedModel | Exception = LoadingCrashed("loading the model crashed")
        try:
            outcome = load_model(config, progress)
        except LOAD_ERRORS as error:
            outcome = error
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name="tenure-loading", daemon=True).start()
    return await done
