import math

import pytest
import torch
from llada_files import config_json, forward_written_out, random_tensors

from wm_env.lm.models.llada_config import LLaDAConfig, llama_name, tensor_names
from wm_env.lm.models.network import FullPrecisionRotary, build_network


def test_llada_8b_has_291_tensors_and_the_number_of_parameters_its_index_states() -> None:
    eight_b = config_json(
        d_model=4096,
        n_layers=32,
        n_heads=32,
        n_kv_heads=None,
        mlp_hidden_size=12288,
        vocab_size=126464,
        embedding_size=126464,
        mask_token_id=126336,
        eos_token_id=126081,
        max_sequence_length=4096,
    )
    config = LLaDAConfig.from_json(eight_b)
    network = build_network(config, "meta")
    names = tensor_names(config)
    assert len(names) == 291
    assert set(names.values()) == set(network.state_dict())
    # 16,031,162,368 bytes of bf16, by the index of the published checkpoint.
    assert 2 * sum(parameter.numel() for parameter in network.parameters()) == 16_031_162_368


def test_the_two_ff_outs_have_different_names() -> None:
    assert llama_name("model.transformer.ff_out.weight") == "lm_head.weight"
    assert llama_name("model.transformer.blocks.7.ff_out.weight") == "model.layers.7.mlp.down_proj.weight"
    for other in (
        "transformer.ff_out.weight",
        "model.transformer.ff_out.weight.scale",
        "model.transformer.ff_out.bias",
        "model.transformer.blocks.x.ff_out.weight",
        "model.transformer.blocks.1.q_norm.weight",
        "model.transformer.lm_head.weight",
    ):
        assert llama_name(other) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_type", "llama"),
        ("architectures", ["LLaDAMoEModelLM"]),
        ("block_type", "sequential"),
        ("block_group_size", 2),
        ("layer_norm_type", "default"),
        ("layer_norm_with_affine", False),
        ("activation_type", "swiglu"),
        ("rope", False),
        ("rope_full_precision", False),
        ("alibi", True),
        ("attention_layer_norm", True),
        ("include_bias", True),
        ("include_qkv_bias", True),
        ("bias_for_layer_norm", True),
        ("input_emb_norm", True),
        ("scale_logits", True),
        ("multi_query_attention", True),
        ("rope_scaling", {"factor": 2.0}),
        ("clip_qkv", 8.0),
        ("weight_tying", None),
        ("d_model", 0),
        ("d_model", 32.0),
        ("n_layers", True),
        ("n_heads", 3),
        ("n_kv_heads", 3),
        ("rope_theta", "500000"),
        ("rms_norm_eps", 0),
        ("max_sequence_length", None),
        ("mask_token_id", -1),
        ("mask_token_id", 260),
        ("n_layers", 10**30),
        ("d_model", 10**30),
        ("vocab_size", 1 << 40),
        ("rope_theta", 10**400),
        ("rope_theta", math.inf),
    ],
)
def test_a_configuration_that_is_not_implemented_is_refused_by_name(name: str, value: object) -> None:
    LLaDAConfig.from_json(config_json())
    with pytest.raises(ValueError, match=name):
        LLaDAConfig.from_json(config_json(**{name: value}))


@pytest.mark.parametrize("name", ["model_type", "block_type", "activation_type", "d_model", "mask_token_id"])
def test_nothing_is_filled_in_from_defaults(name: str) -> None:
    values = config_json()
    del values[name]
    with pytest.raises(ValueError, match=f"lacks '{name}'"):
        LLaDAConfig.from_json(values)


def test_a_written_configuration_reads_back() -> None:
    config = LLaDAConfig.from_json(config_json(n_kv_heads=None, weight_tying=True))
    assert config.n_kv_heads == 4
    assert LLaDAConfig.from_json(config.to_json()) == config


def _network(tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    config = LLaDAConfig.from_json(config_json())
    network = build_network(config)
    network.load_state_dict({llama_name(name): tensor for name, tensor in tensors.items()})
    return network.eval()


def test_logits_are_those_of_llada_written_out() -> None:
    tensors = random_tensors()
    canvas = [5, 100, 257, 200, 257, 257, 31]
    expected = forward_written_out(tensors, canvas)
    with torch.no_grad():
        logits = _network(tensors)(torch.tensor([canvas]), use_cache=False).logits[0]
    assert abs(expected).max() > 5
    assert abs(logits.double().numpy() - expected).max() < 1e-4


def test_the_last_token_reaches_the_first_position() -> None:
    network = _network(random_tensors())
    canvas = torch.randint(0, 256, (1, 12), generator=torch.Generator().manual_seed(0))
    other = canvas.clone()
    other[0, -1] = (other[0, -1] + 1) % 256
    with torch.no_grad():
        first, second = (network(row, use_cache=False).logits[0, 0] for row in (canvas, other))
    assert (first - second).abs().max() > 1e-2


@pytest.mark.parametrize("pair", [("ff_proj", "up_proj"), ("attn_norm", "ff_norm"), ("q_proj", "attn_out")])
def test_tensors_of_one_shape_are_not_interchangeable(pair: tuple[str, str]) -> None:
    tensors = random_tensors()
    swapped = dict(tensors)
    first, second = (f"model.transformer.blocks.1.{name}.weight" for name in pair)
    swapped[first], swapped[second] = tensors[second], tensors[first]
    canvas = torch.arange(10)[None]
    with torch.no_grad():
        logits = [_network(state)(canvas, use_cache=False).logits for state in (tensors, swapped)]
    assert (logits[0] - logits[1]).abs().max() > 1e-2


def test_rotary_tables_stay_in_float32_when_the_network_is_cast() -> None:
    network = _network(random_tensors())
    canvas = torch.arange(1024)[None] % 256
    before = network.model.rotary_emb(torch.zeros(1), canvas)
    network.to(torch.bfloat16)
    after = network.model.rotary_emb(torch.zeros(1, dtype=torch.bfloat16), canvas)
    for table, cast in zip(before, after, strict=True):
        assert cast.dtype == torch.float32
        assert torch.equal(table, cast)


def test_rotary_angle_is_position_times_a_power_of_theta() -> None:
    cosine, sine = FullPrecisionRotary(6, 100.0)(torch.zeros(1), torch.tensor([[0, 3]]))
    angles = torch.tensor([3.0, 3.0 * 100 ** (-1 / 3), 3.0 * 100 ** (-2 / 3)]).repeat(2)
    torch.testing.assert_close(cosine, torch.stack((torch.ones(6), angles.cos()))[None])
    torch.testing.assert_close(sine, torch.stack((torch.zeros(6), angles.sin()))[None])
