"""Text ↔ token ids: vocabulary, tokenizer and chat template of a model. Nothing here runs the model."""
