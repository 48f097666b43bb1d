"""A Llama small enough for tests, with random weights that are the same for the same seed."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from engine.executor.batch import PoolGeometry
from engine.executor.decoder import Decoder
from engine.executor.hf_config import HfConfig
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner
from engine.executor.models.blueprint import Blueprint
from engine.executor.models.registry import read_blueprint
from engine.executor.tensors import TensorReader, Tensors
from engine.executor.torch_executor import TorchExecutor

INITIALIZER_RANGE = 0.2
"""Standard deviation of the weights: large enough that the best two logits are far apart."""

HIDDEN_SIZE = 64
NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KV_HEADS = 2
HEAD_DIM = 16
FFN_SIZE = 128
RMS_EPS = 1e-5


def tiny_llama_blueprint(*, vocab_size: int = 300, context_len: int = 512) -> Blueprint:
    keys: dict[str, object] = {
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": FFN_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "rope_theta": 10000.0,
        "rms_norm_eps": RMS_EPS,
        "max_position_embeddings": context_len,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return read_blueprint(HfConfig("tiny-llama", keys, {}))


def tiny_llama_config(*, vocab_size: int = 300, context_len: int = 512) -> ModelConfig:
    return tiny_llama_blueprint(vocab_size=vocab_size, context_len=context_len).config


def tiny_llama_shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Every tensor by its Hugging Face name."""
    q_size, kv_size = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (HIDDEN_SIZE,),
        "self_attn.q_proj": (q_size, HIDDEN_SIZE),
        "self_attn.k_proj": (kv_size, HIDDEN_SIZE),
        "self_attn.v_proj": (kv_size, HIDDEN_SIZE),
        "self_attn.o_proj": (HIDDEN_SIZE, q_size),
        "post_attention_layernorm": (HIDDEN_SIZE,),
        "mlp.gate_proj": (FFN_SIZE, HIDDEN_SIZE),
        "mlp.up_proj": (FFN_SIZE, HIDDEN_SIZE),
        "mlp.down_proj": (HIDDEN_SIZE, FFN_SIZE),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab_size, HIDDEN_SIZE),
        "model.norm.weight": (HIDDEN_SIZE,),
        "lm_head.weight": (vocab_size, HIDDEN_SIZE),
    }
    for number in range(NUM_LAYERS):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, NDArray[np.float32]]:
    """Random matrices, and ones for norms; what a name gets depends on the name and the seed alone."""
    return {name: _random_tensor(name, shape, seed) for name, shape in shapes.items()}


def _random_tensor(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    generator = np.random.default_rng([seed, *name.encode()])
    return generator.normal(0.0, INITIALIZER_RANGE, shape).astype(np.float32)


def tiny_llama_decoder(*, vocab_size: int = 300, context_len: int = 512, seed: int = 0) -> Decoder:
    held = random_tensors(tiny_llama_shapes(vocab_size), seed)
    readers: dict[str, TensorReader] = {name: array.copy for name, array in held.items()}
    blueprint = tiny_llama_blueprint(vocab_size=vocab_size, context_len=context_len)
    return blueprint.build(Tensors("tiny-llama", readers), lambda _fraction, _text: None)


def tiny_llama_runner(
    *, page_size: int, pool_pages: int, num_rows: int, context_len: int = 512, seed: int = 0
) -> ModelRunner:
    config = tiny_llama_config(context_len=context_len)
    decoder = tiny_llama_decoder(context_len=context_len, seed=seed)
    return ModelRunner(config, decoder, PoolGeometry(page_size, pool_pages, num_rows))


def tiny_llama_executor(
    *, page_size: int, pool_pages: int, num_rows: int, context_len: int = 512, seed: int = 0
) -> TorchExecutor:
    """The real executor over a tiny model, on one thread. The caller closes it."""
    runner = tiny_llama_runner(
        page_size=page_size, pool_pages=pool_pages, num_rows=num_rows, context_len=context_len, seed=seed
    )
    return TorchExecutor(runner, threads=1)
