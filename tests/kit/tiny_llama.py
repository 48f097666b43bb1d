"""A Llama small enough for tests, with random weights that are the same for the same seed."""

import numpy as np
from numpy.typing import NDArray

from engine.executor.batch import PoolGeometry
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner
from engine.executor.torch_executor import TorchExecutor
from engine.executor.weights import LlamaWeights, TensorSource, build_weights, rotated_by_halves

INITIALIZER_RANGE = 0.2
"""Standard deviation of the weights: large enough that the best two logits are far apart."""


def tiny_llama_config(*, vocab_size: int = 300, context_len: int = 512) -> ModelConfig:
    return ModelConfig(
        name="tiny-llama",
        arch="llama",
        vocab_size=vocab_size,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        ffn_size=128,
        rope_theta=10000.0,
        rms_eps=1e-5,
        context_len=context_len,
        has_tied_embeddings=False,
        eos_ids=(2,),
        bos_id=1,
    )


def tiny_llama_tensor_source(config: ModelConfig, seed: int) -> TensorSource:
    """Random tensors by GGUF name, q and k in a GGUF file's order; a name's values depend on name and seed alone."""

    def random_tensor(name: str) -> NDArray[np.float32]:
        shape = _shape(config, name)
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        generator = np.random.default_rng([seed, *name.encode()])
        return generator.normal(0.0, INITIALIZER_RANGE, shape).astype(np.float32)

    return random_tensor


def tiny_llama_weights(config: ModelConfig, seed: int = 0) -> LlamaWeights:
    source = rotated_by_halves(config, tiny_llama_tensor_source(config, seed))
    return build_weights(config, source, lambda _fraction, _text: None)


def tiny_llama_runner(
    *, page_size: int, pool_pages: int, num_rows: int, context_len: int = 512, seed: int = 0
) -> ModelRunner:
    config = tiny_llama_config(context_len=context_len)
    return ModelRunner(config, tiny_llama_weights(config, seed), PoolGeometry(page_size, pool_pages, num_rows))


def tiny_llama_executor(
    *, page_size: int, pool_pages: int, num_rows: int, context_len: int = 512, seed: int = 0
) -> TorchExecutor:
    """The real executor over a tiny model, on one thread. The caller closes it."""
    runner = tiny_llama_runner(
        page_size=page_size, pool_pages=pool_pages, num_rows=num_rows, context_len=context_len, seed=seed
    )
    return TorchExecutor(runner, threads=1)


def _shape(config: ModelConfig, name: str) -> tuple[int, ...]:
    hidden, ffn = config.hidden_size, config.ffn_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (config.vocab_size, hidden),
        "output": (config.vocab_size, hidden),
        "attn_q": (q_size, hidden),
        "attn_k": (kv_size, hidden),
        "attn_v": (kv_size, hidden),
        "attn_output": (hidden, q_size),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }
    return shapes.get(name.removesuffix(".weight").rpartition(".")[2], (hidden,))
