"""Random encoders of transformers, one of each kind."""

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

SHAPE = {"vocab_size": 261, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SPECIALS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


def random_network(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    made = {
        "bert": lambda: BertForMaskedLM(
            BertConfig(**SHAPE, intermediate_size=48, max_position_embeddings=64, initializer_range=0.3)
        ),
        "roberta": lambda: RobertaForMaskedLM(
            RobertaConfig(**SHAPE, **SPECIALS, intermediate_size=48, max_position_embeddings=66, initializer_range=0.3)
        ),
        "modernbert": lambda: ModernBertForMaskedLM(
            ModernBertConfig(
                **SHAPE,
                **SPECIALS,
                intermediate_size=48,
                max_position_embeddings=64,
                cls_token_id=0,
                sep_token_id=2,
                local_attention=8,
                initializer_range=0.3,
                initializer_cutoff_factor=3.0,
            )
        ),
    }
    return made[kind]().eval()
