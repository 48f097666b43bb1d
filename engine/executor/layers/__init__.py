"""The layers that families of models are made of."""
