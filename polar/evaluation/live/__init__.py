"""The law of a run with the language model at hand: real texts, read back from their bytes, and an observer of both.

    python evaluate.py RUN --live

Watermarked and plain texts of four kinds (`polar.evaluation.live.texts`) continue the prompts of the run. The receiver
gets bytes. The observer gets a text with its prompt, knows the model and how watermarked texts are made, and does not
have the key.
"""
