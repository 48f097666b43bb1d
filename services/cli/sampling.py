"""The arguments of a command → how its turns are generated."""

import argparse

from services.client import SamplingOptions


def read_sampling(arguments: argparse.Namespace) -> SamplingOptions:
    return SamplingOptions(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        stop=tuple(arguments.stop or ()),
    )
