"""A byte-level vocabulary of fewer than 300 tokens, as a GGUF file's metadata."""

from tests.kit.gguf_files import Value

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_ID, EOS_ID = 1, 2
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "a b", "1 2")
"""In the byte-level alphabet, where Ġ is a space."""
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL, NORMAL = 3, 1


def tiny_vocabulary_metadata(*, chat_template: str | None = CHATML) -> dict[str, Value]:
    """Special tokens 0 to 2, one token a byte from 3 on, then the results of the merges."""
    plain = [*byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]
    metadata: dict[str, Value] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*SPECIAL_TOKENS, *plain],
        "tokenizer.ggml.token_type": [CONTROL] * len(SPECIAL_TOKENS) + [NORMAL] * len(plain),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": EOS_ID,
    }
    if chat_template is not None:
        metadata["tokenizer.chat_template"] = chat_template
    return metadata


def byte_characters() -> list[str]:
    """The 256 characters that stand for bytes, told apart from the code under test: by rule, not by its function."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    stands_for = {byte: chr(byte) for byte in visible} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}
    return [stands_for[byte] for byte in range(256)]
