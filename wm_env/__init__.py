"""The problem: from a language model to a constrained Markov decision process."""
