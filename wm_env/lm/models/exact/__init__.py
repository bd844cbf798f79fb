"""Exact arithmetic: a language model whose probabilities are the same bits on every machine, by construction.

Weights and activations are integers, stored in floats. Whatever is summed stays below what the accumulator holds, so
the order of sums, threads, vector units and tensor cores cannot matter: ordinary matrix products are exact. Everything
else is one IEEE operation after the other. `network` is the pass, and the specification; `law` makes integers of its
logits.
"""
