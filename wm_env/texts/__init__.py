"""CovertWatermarkText-v0: one text an episode, its contexts from a tree, a chain or a language model."""
