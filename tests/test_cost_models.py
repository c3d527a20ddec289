"""ringcomm.cost reads configurations: counts of published models, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from documents import page

from ringcomm import cost
from ringcomm.cli import main
from ringcomm.cost.config import FAMILIES
from ringcomm.plan import Link

# Elements of the published checkpoints, each tensor once and without predictors of further tokens,
# as transformers 5.24 counts them of these configurations; active ones as the models' pages say.
MODELS = json.loads((Path(__file__).parent / "models.json").read_text())
LLAMA = MODELS["Llama-3.1-8B"]["config"]
MIXTRAL = MODELS["Mixtral-8x7B"]["config"]
QWEN_MOE = MODELS["Qwen3-30B-A3B"]["config"]
DEEPSEEK = MODELS["DeepSeek-V3"]["config"]
MACHINE = cost.Machine(1e12, 16e9, Link(0, 10e9), Link(0, 1e9), ranks_per_host=4)


@pytest.fixture
def read(tmp_path):
    """Reads a configuration, with changes; a field that is ... is left out."""

    def read_config(config, **changes):
        changed = {key: value for key, value in (config | changes).items() if value is not ...}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(changed))
        return cost.from_config(path)

    return read_config


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_published_models(name, read):
    assert read(MODELS[name]["config"]).num_params == pytest.approx(
        MODELS[name]["params"], rel=1e-3
    )


@pytest.mark.parametrize("name", [name for name in MODELS if "active" in MODELS[name]])
def test_active_parameters_of_published_models(name, read):
    """They are published with two digits or three."""
    assert read(MODELS[name]["config"]).active_params == pytest.approx(
        MODELS[name]["active"], rel=0.02
    )


def test_every_known_model_type_has_a_model_here():
    assert {model["config"]["model_type"] for model in MODELS.values()} == set(FAMILIES)


def test_the_page_names_every_known_model_type():
    text = page("reference/cost.md").split("Known are")[1].split("Any other")[0]
    assert re.findall(r"`(\w+)`", text) == list(FAMILIES)


def test_models_by_name_are_the_published_ones(read):
    for name, published in (("gpt2", "GPT-2"), ("llama-3.1-405b", "Llama-3.1-405B")):
        assert read(MODELS[published]["config"]) == cost.MODELS[name]


def test_experts_by_hand():
    """2 of 5 experts and a shared one; h = 4, one block with experts and one without."""
    experts = cost.Experts(5, 2, ffn_size=3, shared_ffn_size=6, num_layers=1)
    model = cost.Transformer(2, 4, 2, ffn_size=10, vocab_size=7, gated=True, experts=experts)
    attention, router, expert, shared, dense = 4 * 16, 4 * 5, 3 * 4 * 3, 3 * 4 * 6, 3 * 4 * 10
    block = attention + router + 2 * expert + shared
    assert model.linear_params_per_layer == block
    assert model.params_per_layer == block + 3 * expert + 2 * 4
    assert model.linear_params == block + attention + dense + 7 * 4
    norms = 5 * 4
    assert model.num_params == 2 * attention + router + 5 * expert + shared + dense + 56 + norms
    assert model.active_params == model.num_params - 3 * expert
    scores_and_values = 2 * 5 * (4 + 4)
    assert model.forward_flops(3, seq_len=5) == 3 * (
        2 * model.linear_params + 2 * scores_and_values
    )


def test_latent_attention_by_hand():
    """4 heads, keys of 3 + 2, values of 5; queries from 6 numbers, keys and values from 7."""
    latent = cost.LatentAttention(kv_rank=7, nope_dim=3, rope_dim=2, v_dim=5, q_rank=6)
    model = cost.Transformer(1, 10, 4, ffn_size=1, vocab_size=1, latent=latent)
    queries, narrow, wide = 10 * 6 + 6 * 4 * 5, 10 * (7 + 2), 7 * 4 * (3 + 5)
    assert model.qkv_params == queries + narrow + wide
    assert model.linear_params_per_layer == model.qkv_params + 10 * 4 * 5 + 2 * 10
    assert model.layer_forward_flops(1, seq_len=9) == (
        2 * model.linear_params_per_layer + 4 * 2 * 9 * (5 + 5)
    )
    kept = 4 * 10 + 2 * (6 + 7) + (20 + 20 + 20 + 20) + 2 * 1
    assert cost.activation_nbytes_per_layer(model, 1, 9) == 2 * kept


def test_memory_has_all_experts_and_activations_those_of_a_token(read):
    model = read(MIXTRAL)
    layout = cost.Layout(dp=4, zero=1, seq_len=128)
    memory = cost.training_memory(model, layout)
    assert memory.parameters == 2 * model.num_params
    assert memory.optimizer == 3 * model.num_params
    attention = 2 * 4096 + 2 * 1024
    per_token = 2 * (4 * 4096 + 2 * 4096 + attention + 4 * 2 * 14336)
    assert memory.activations == 32 * 128 * per_token


def test_a_stage_of_both_kinds_of_blocks(read):
    """DeepSeek-V3 has 3 dense blocks of 61: of 60 in a stage, at least 2."""
    model = read(DEEPSEEK)
    (experts, sparse), (dense, others) = model.blocks(60)
    assert (experts, sparse, others) == (model, 58, 2)
    assert dense.experts is None
    layers = 31 * model.params_per_layer + 129280 * 7168 + 7168
    assert cost.params_per_rank(model, cost.Layout(pp=2)) == layers
    assert model.num_params == pytest.approx(
        58 * model.params_per_layer + 3 * dense.params_per_layer + 2 * 129280 * 7168, rel=1e-6
    )


def test_more_tokens_hide_experts_that_they_do_not_pass(read):
    """All parameters travel, those of a token are computed with."""
    model = read(QWEN_MOE)
    (found,) = cost.overlaps(model, MACHINE, cost.Layout(dp=4))
    assert found.nbytes == 2 * model.num_params
    least = cost.data_parallel_crossover(4, 1e12, 10e9) * model.num_params / model.active_params
    assert int(re.sub(r"\D", "", found.crossover)) == pytest.approx(least, abs=1)
    forward, _ = cost.overlaps(model, MACHINE, cost.Layout(dp=4, zero=3, seq_len=4096))
    assert forward.nbytes == 2 * model.params_per_layer
    assert forward.computation == model.layer_forward_flops(4096, 4096) / 1e12


def test_tensor_parallelism_divides_each_expert(read):
    model = read(QWEN_MOE)
    found = {one.name: one for one in cost.overlaps(model, MACHINE, cost.Layout(tp=4))}
    assert found["TP, QKV"].computation == 2 * 4096 * 2048 * (32 + 4 + 4) * 128 / 4 / 1e12
    assert found["TP, MLP out"].computation == 2 * 4096 * 2048 * 8 * 768 / 4 / 1e12
    assert cost.params_per_rank(model, cost.Layout(tp=4)) == -(-model.num_params // 4)


def test_heads_over_tensor_parallel_ranks(read):
    """32 heads of queries and 8 of keys: 16 ranks have one of keys each, which two share."""
    model = read(LLAMA)
    assert model.over(4).num_params == model.num_params
    replicas = 32 * 2 * 4096 * (16 - 8) * 128
    assert model.over(16).num_params == model.num_params + replicas
    layout = cost.Layout(tp=16)
    assert cost.params_per_rank(model, layout) == -(-(model.num_params + replicas) // 16)
    with pytest.raises(ValueError, match=r"^tp must divide the 32 attention heads, got 3$"):
        cost.training_memory(model, cost.Layout(tp=3))
    few = cost.Transformer(1, 96, 12, 8, 8, num_kv_heads=4)
    message = r"^tp must divide the 4 heads of keys and values, or be a multiple of them, got 6$"
    with pytest.raises(ValueError, match=message):
        cost.overlaps(few, MACHINE, cost.Layout(tp=6))


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (LLAMA, {"model_type": "mamba"}, "the model_type 'mamba', which is not known; known are b"),
        (LLAMA, {"model_type": None}, "the model_type None"),
        (LLAMA, {"model_type": ...}, "has no 'model_type'; known are "),
        (QWEN_MOE, {"num_hidden_layers": 10**12}, "to 10000000 as 'num_hidden_layers', got 10000"),
        (LLAMA, {"model_type": ["llama"]}, "the model_type ['llama']"),
        (LLAMA, {"num_local_experts": 8}, "'num_local_experts', which models of the model_type 'l"),
        (QWEN_MOE, {"kv_lora_rank": 512}, "has 'kv_lora_rank', which"),
        (LLAMA, {"hidden_size": None}, "an integer from 1 to 10000000 as 'hidden_size', got None"),
        (
            LLAMA,
            {"hidden_size": -4096},
            "to 10000000 as 'hidden_size', got -4096",
        ),
        (LLAMA, {"num_hidden_layers": 0}, "as 'num_hidden_layers', got 0"),
        (LLAMA, {"num_hidden_layers": True}, "as 'num_hidden_layers', got True"),
        (LLAMA, {"vocab_size": 32000.5}, "as 'vocab_size', got 32000.5"),
        (LLAMA, {"vocab_size": "32000"}, "as 'vocab_size', got '32000'"),
        (LLAMA, {"intermediate_size": None}, "as 'intermediate_size', got None"),
        (LLAMA, {"num_key_value_heads": 0}, "as 'num_key_value_heads', got 0"),
        (LLAMA, {"num_key_value_heads": 5}, "5 heads of keys do not divide 32 of queries"),
        (LLAMA, {"num_attention_heads": 33}, "33 heads do not divide a hidden size of 4096"),
        (LLAMA, {"head_dim": False}, "as 'head_dim', got False"),
        (LLAMA, {"tie_word_embeddings": 1}, "true or false as 'tie_word_embeddings', got 1"),
        (LLAMA, {"intermediate_size": ...}, "has no 'intermediate_size' (or "),
        (MODELS["GPT-2"]["config"], {"n_positions": ...}, "has no 'n_positions'"),
        (MODELS["OPT-1.3B"]["config"], {"word_embed_proj_dim": 512}, "not as wide as its blocks"),
        (MIXTRAL, {"num_experts_per_tok": ...}, "has no 'num_experts_per_tok'"),
        (MIXTRAL, {"num_experts_per_tok": 9}, "a token passes 9 experts, but there are 8"),
        (QWEN_MOE, {"mlp_only_layers": 3}, "must have a list as 'mlp_only_layers', got 3"),
        (DEEPSEEK, {"q_lora_rank": ...}, "has no 'q_lora_rank', which may be null"),
        (DEEPSEEK, {"first_k_dense_replace": -1}, "as 'first_k_dense_replace', got -1"),
    ],
)
def test_configurations_that_are_refused(config, changes, message, read, tmp_path):
    with pytest.raises(ValueError) as raised:
        read(config, **changes)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "config.json"))


@pytest.mark.parametrize("text", ["[]", "null", "{", "\x80"])
def test_files_that_are_no_configurations(text, tmp_path):
    (tmp_path / "config.json").write_text(text, "latin-1")
    with pytest.raises(ValueError, match=r"is no model's config\.json"):
        cost.from_config(tmp_path / "config.json")


def test_null_is_what_transformers_takes_it_for(read):
    """As many heads of keys as of queries, heads of h/a, an MLP of 4h."""
    llama = MODELS["Llama-2-7B"]["config"]
    assert read(llama, num_key_value_heads=None, head_dim=None) == read(
        llama, num_key_value_heads=...
    )
    assert read(MODELS["GPT-2"]["config"], n_inner=None) == cost.MODELS["gpt2"]


def test_blocks_with_experts(read):
    def layers(config, **changes):
        return read(config, **changes).experts.num_layers

    assert layers(DEEPSEEK) == 58
    assert layers(DEEPSEEK, moe_layer_freq=2) == 29  # 4, 6, ..., 60
    assert layers(QWEN_MOE) == 48
    assert layers(QWEN_MOE, decoder_sparse_step=2, mlp_only_layers=[1, 2]) == 23  # 3, 5, ..., 47


def test_command_says_all_and_active_parameters(capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MIXTRAL))
    assert main(["cost", "--model", str(config), "--tp", "4"]) == 0
    printed = capsys.readouterr().out
    assert "46.7 billion parameters (12.9 active), 4 ranks" in printed
    assert "experts: each is divided over the tensor-parallel ranks" in printed
    assert main(["cost", "--model", str(config), "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert (model["num_params"], model["active_params"]) == (46_702_792_704, 12_879_925_248)


def test_command_refuses_ranks_that_do_not_divide_the_heads(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["cost", "--model", "gpt2-xl", "--tp", "8"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("tp must divide the 25 attention heads, got 8\n")
