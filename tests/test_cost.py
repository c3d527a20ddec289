"""ringcomm.cost against published numbers, numbers worked out by hand, and each derivation."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringcomm
from ringcomm import cost
from ringcomm.cli import main
from ringcomm.plan import Link, Network

GPT3 = cost.Transformer(96, 12288, 96, 4 * 12288, 50257, bias=True, tied=True, dropout=True)
LLAMA = cost.MODELS["llama-3.1-8b"]
# 1 Tflop/s; 10 GB/s on a host of 4, 1 GB/s between hosts; no latency.
MACHINE = cost.Machine(1e12, 16e9, Link(0, 10e9), Link(0, 1e9), ranks_per_host=4)


@pytest.mark.parametrize(
    ("name", "num_params"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
    ],
)
def test_parameters_of_published_models(name, num_params):
    """The numbers of elements in the published checkpoints."""
    assert cost.MODELS[name].num_params == num_params


@settings(deadline=None)
@given(st.integers(1, 100), st.integers(1, 64), st.integers(1, 100_000))
def test_the_playbooks_parameters(num_layers, heads, vocab_size):
    """h*v + L (12h² + 13h) + 2h, with biases, a tied output and rotary positions."""
    h = 16 * heads
    model = cost.Transformer(num_layers, h, heads, 4 * h, vocab_size, bias=True, tied=True)
    assert model.num_params == h * vocab_size + num_layers * (12 * h * h + 13 * h) + 2 * h
    assert model.linear_params_per_layer == 12 * h * h
    gated = cost.Transformer(num_layers, h, heads, 4 * h, vocab_size, gated=True)
    assert gated.linear_params_per_layer == 16 * h * h


def test_operations():
    """Layer by layer for one token of a tiny model, at 2 per multiply and add."""
    model = cost.Transformer(2, 4, 2, ffn_size=10, vocab_size=7, num_kv_heads=1, gated=True)
    linears = (4 * 4) + 2 * (4 * 2) + (4 * 4) + 3 * (4 * 10)  # queries; keys, values; output; MLP
    scores_and_values = 2 * (5 * 4) + 2 * (5 * 4)  # with 5 tokens of width 4
    per_token = 2 * (2 * linears + scores_and_values) + 2 * 4 * 7
    assert model.forward_flops(3, seq_len=5) == 3 * per_token
    assert model.backward_flops(3, seq_len=5) == 6 * per_token
    assert model.layer_forward_flops(3, seq_len=5) == 3 * (2 * linears + scores_and_values)
    assert model.linear_params == 2 * linears + 28


def test_backward_takes_twice_the_operations():
    """torch counts them: the backward pass of a linear in the middle multiplies twice as much."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.rand(6, 8, requires_grad=True)
    weight = torch.rand(8, 10, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        y = x @ weight
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    assert forward.get_total_flops() == 2 * 6 * 80
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


def test_activations_are_korthikantis():
    """s b h (34 + 5 a s / h), and with tensor parallelism 10 of the 34 are not divided."""
    s, a, h = 2048, 96, 12288
    whole = cost.activation_nbytes_per_layer(GPT3, s, s, recompute="none")
    assert whole == s * h * 34 + 5 * a * s * s
    assert cost.activation_nbytes_per_layer(GPT3, s, s) == s * h * 34
    assert cost.activation_nbytes_per_layer(GPT3, s, s, recompute="full") == s * h * 2
    assert cost.activation_nbytes_per_layer(GPT3, s, s, tp=8) == s * h * 34 // 8
    assert cost.activation_nbytes_per_layer(GPT3, s, s, tp=8, sequence_parallel=False) == (
        s * h * 10 + s * h * 24 // 8
    )
    assert cost.activation_nbytes_per_layer(GPT3, s, s, element_nbytes=4) == s * h * (34 * 2 - 2)


def test_activations_of_a_gated_model():
    """Per token: 4h of norms and inputs, h + 2kv + h of attention, 4f of the MLP, 2 bytes each."""
    per_token = 2 * (4 * 4096 + (4096 + 2 * 1024 + 4096) + 4 * 14336)
    assert cost.activation_nbytes_per_layer(LLAMA, 10, 8192) == 10 * per_token


def test_memory():
    """16 bytes per parameter, of which ZeRO shards more and more."""
    model = cost.Transformer(1, 8, 1, 8, 66)
    params = 2 * (66 * 8) + (4 * 64 + 2 * 64) + 3 * 8
    assert cost.params_per_rank(model, cost.Layout()) == model.num_params == params

    def parts(zero):
        memory = cost.training_memory(model, cost.Layout(dp=4, zero=zero, seq_len=2))
        return memory.parameters, memory.gradients, memory.optimizer

    assert params % 4 == 0
    assert parts(0) == (2 * params, 2 * params, 12 * params)
    assert parts(1) == (2 * params, 2 * params, 3 * params)
    assert parts(2) == (2 * params, params // 2, 3 * params)
    assert parts(3) == (params // 2, params // 2, 3 * params)
    memory = cost.training_memory(model, cost.Layout(seq_len=2), cost.FLOAT32)
    assert memory.parameters + memory.gradients + memory.optimizer == 16 * params
    assert memory.activations == 2 * 4 * (4 * 8 + 4 * 8 + 2 * 8)
    assert memory.total == 16 * params + memory.activations


def test_memory_of_a_pipeline():
    """405B on 8 * 16 ranks: stages of ceil(126/16) = 8 layers; 16 micro-batches are kept."""
    model = cost.MODELS["llama-3.1-405b"]
    layout = cost.Layout(tp=8, pp=16, micro_batches=64, seq_len=8192)
    stage = 8 * model.params_per_layer + 128256 * 16384 + 16384
    assert cost.params_per_rank(model, layout) == -(-stage // 8)
    per_layer = cost.activation_nbytes_per_layer(model, 8192, 8192, tp=8)
    assert cost.training_memory(model, layout).activations == per_layer * 8 * 16
    few = cost.Layout(tp=8, pp=16, micro_batches=3, seq_len=8192)
    assert cost.training_memory(model, few).activations == per_layer * 8 * 3


def test_all_reduce_by_hand():
    """1 GB over 8 ranks at 100 GB/s: 14 of 8 parts, 17.5 ms, and 14 latencies of 10 us."""
    assert cost.all_reduce_seconds(1e9, 8, 100e9) == pytest.approx(17.5e-3, rel=1e-12)
    assert cost.all_reduce_seconds(1e9, 8, 100e9, 10e-6) == pytest.approx(17.64e-3, rel=1e-12)
    assert cost.all_gather_seconds(1e9, 8, 100e9, 10e-6) == pytest.approx(8.82e-3, rel=1e-12)
    assert cost.all_reduce_seconds(1e9, 1, 100e9, 10e-6) == 0
    assert cost.send_seconds(1e9, 100e9, 10e-6) == pytest.approx(10.01e-3, rel=1e-12)


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(0, 2**30), st.floats(0, 1), st.floats(1, 1e12))
def test_formulas_are_what_the_simulation_gives(world_size, nbytes, latency, bandwidth):
    network = Network(Link(latency, bandwidth))
    for collective, formula in (
        ("all_reduce", cost.all_reduce_seconds),
        ("reduce_scatter", cost.all_gather_seconds),
        ("all_gather", cost.all_gather_seconds),
    ):
        simulated = ringcomm.plan.simulate(
            collective, "ring", world_size=world_size, nbytes=nbytes, network=network
        )
        by_formula = formula(nbytes, world_size, bandwidth, latency)
        assert simulated.seconds == pytest.approx(by_formula, rel=1e-9)


ranks = st.integers(2, 512)
tokens = st.integers(1, 10**6)
params = st.integers(1, 10**12)
rates = st.floats(1e6, 1e16)
element = st.sampled_from([1, 2, 4])


@settings(deadline=None)
@given(ranks, tokens, params, rates, rates, element)
def test_ratio_of_data_parallelism(dp, num_tokens, num_params, flops, bandwidth, nbytes):
    """From the times themselves, for any number of parameters: it cancels."""
    sent = cost.all_reduce_seconds(num_params * nbytes, dp, bandwidth)
    computed = 4 * num_tokens * num_params / flops
    ratio = cost.data_parallel_ratio(dp, num_tokens, flops, bandwidth, nbytes)
    assert ratio == pytest.approx(sent / computed, rel=1e-9)
    crossover = cost.data_parallel_crossover(dp, flops, bandwidth, nbytes)
    assert ratio * num_tokens == pytest.approx(crossover, rel=1e-9)


@settings(deadline=None)
@given(ranks, tokens, params, rates, rates, element)
def test_ratio_of_zero3(dp, num_tokens, num_params, flops, bandwidth, nbytes):
    gather = cost.all_gather_seconds(num_params * nbytes, dp, bandwidth)
    ratio = cost.zero3_ratio(dp, num_tokens, flops, bandwidth, nbytes)
    assert ratio == pytest.approx(gather / (2 * num_tokens * num_params / flops), rel=1e-9)
    assert ratio == pytest.approx(2 * gather / (4 * num_tokens * num_params / flops), rel=1e-9)


@settings(deadline=None)
@given(ranks, tokens, st.integers(1, 10**5), st.integers(1, 10**5), rates, rates, element)
def test_ratio_of_tensor_parallelism(tp, num_tokens, hidden, features, flops, bandwidth, nbytes):
    gather = cost.all_gather_seconds(num_tokens * hidden * nbytes, tp, bandwidth)
    computed = 2 * num_tokens * hidden * features / tp / flops
    ratio = cost.tensor_parallel_ratio(tp, features, flops, bandwidth, nbytes)
    assert ratio == pytest.approx(gather / computed, rel=1e-9)
    most = cost.tensor_parallel_crossover(features, flops, bandwidth, nbytes)
    assert most * ratio == pytest.approx(tp - 1 + ratio, rel=1e-9)  # most - 1 would cancel


@settings(deadline=None)
@given(tokens, st.integers(1, 10**5), params, st.integers(1, 200), rates, rates, element)
def test_ratio_of_pipelines(num_tokens, hidden, per_layer, layers, flops, bandwidth, nbytes):
    sent = cost.send_seconds(num_tokens * hidden * nbytes, bandwidth)
    computed = 2 * num_tokens * per_layer * layers / flops
    ratio = cost.pipeline_parallel_ratio(hidden, per_layer, layers, flops, bandwidth, nbytes)
    assert ratio == pytest.approx(sent / computed, rel=1e-9)
    least = cost.pipeline_parallel_crossover(hidden, per_layer, flops, bandwidth, nbytes)
    assert least == pytest.approx(ratio * layers, rel=1e-9)


def test_ratios_are_the_playbooks_times_the_bytes_of_an_element():
    """Its appendix A3, in elements; of data parallelism without its factor num_params."""
    dp, tp, tokens, h, layers, rate = 8, 4, 4096, 1024, 5, 989e12 / 450e9
    flops, bandwidth = 989e12, 450e9
    playbook = 1 / (2 * tokens) * (dp - 1) / dp * rate
    assert cost.zero3_ratio(dp, tokens, flops, bandwidth) == pytest.approx(2 * playbook)
    assert cost.data_parallel_ratio(dp, tokens, flops, bandwidth) == pytest.approx(2 * playbook)
    playbook = (tp - 1) / (2 * h) * rate
    assert cost.tensor_parallel_ratio(tp, h, flops, bandwidth) == pytest.approx(2 * playbook)
    playbook = rate / (32 * h * layers)
    ratio = cost.pipeline_parallel_ratio(h, 16 * h * h, layers, flops, bandwidth)
    assert ratio == pytest.approx(2 * playbook)


def test_bubble():
    """4 stages, 12 micro-batches: each stage works in 12 of 15 slots."""
    assert cost.pipeline_bubble_fraction(4, 12) == 3 / 15
    assert cost.pipeline_bubble_fraction(1, 12) == 0


def test_overlaps_by_hand():
    """1 layer, h = 1000, no MLP to speak of; 1 Tflop/s, 10 GB/s inside hosts and 1 GB/s across."""
    model = cost.Transformer(1, 1000, 1, ffn_size=1, vocab_size=1)
    flops_per_token = 2 * (4_000_000 + 2000 + 1000) + 4 * 100 * 1000
    layout = cost.Layout(dp=4, seq_len=100)
    (gradients,) = cost.overlaps(model, MACHINE, layout)
    assert not gradients.crosses_hosts
    assert gradients.nbytes == 2 * model.num_params == 2 * (4_002_000 + 5000)
    assert gradients.communication == pytest.approx(1.5 * gradients.nbytes / 10e9)
    assert gradients.computation == pytest.approx(2 * 100 * flops_per_token / 1e12)
    assert gradients.ratio == pytest.approx(gradients.communication / gradients.computation)
    assert gradients.crossover == "≥ 75 tokens"  # 2 bytes / 2 * 3/4 * 1e12 / 10e9
    assert gradients.hidden

    (across,) = cost.overlaps(model, MACHINE, cost.Layout(dp=8, seq_len=100))
    assert across.crosses_hosts
    assert across.communication == pytest.approx(1.75 * gradients.nbytes / 1e9)
    assert not across.hidden


def test_overlaps_of_each_kind():
    model = LLAMA
    layout = cost.Layout(dp=2, tp=2, pp=2, zero=3)
    found = {one.name.split(",")[0]: one for one in cost.overlaps(model, MACHINE, layout)}
    assert list(found) == ["ZeRO-3", "TP", "PP"]
    assert not found["TP"].crosses_hosts  # ranks 0 and 1
    assert not found["ZeRO-3"].crosses_hosts  # ranks 0 and 2
    assert found["PP"].crosses_hosts  # ranks 0 and 4
    assert found["PP"].nbytes == 4096 * 4096 * 2 / 2
    strided = cost.overlaps(model, MACHINE, cost.Layout(dp=4, tp=2))
    assert strided[0].crosses_hosts  # ranks 0, 2, 4 and 6
    assert cost.overlaps(model, MACHINE, cost.Layout()) == []
    zero1 = cost.overlaps(model, MACHINE, cost.Layout(dp=2, zero=1))
    (whole,) = cost.overlaps(model, MACHINE, cost.Layout(dp=2))
    assert sum(one.communication for one in zero1) == pytest.approx(whole.communication)


def test_latency_is_that_of_a_ring_over_hosts():
    """2 hosts of 4: of 8 links around the ring 2 are between hosts, so 7 steps cost 7 means."""
    machine = cost.Machine(1e12, 16e9, Link(1e-6, 1e9), Link(9e-6, 1e9), ranks_per_host=4)
    model = cost.Transformer(1, 8, 1, 8, 8)
    (one,) = cost.overlaps(model, machine, cost.Layout(dp=8))
    volume = 2 * 7 / 8 * 2 * model.num_params / 1e9
    assert one.communication == pytest.approx(2 * 7 * (2 * 9e-6 + 6 * 1e-6) / 8 + volume)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dp": 0}, "dp must be at least 1, got 0"),
        ({"seq_len": -5}, "seq_len must be at least 1, got -5"),
        ({"zero": 4}, "zero must be 0, 1, 2 or 3, got 4"),
    ],
)
def test_wrong_layouts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        cost.Layout(**arguments)
    with pytest.raises(ValueError, match=r"^recompute must be .*, got 'some'$"):
        cost.activation_nbytes_per_layer(LLAMA, 1, 1, recompute="some")


CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def test_command(capsys, monkeypatch, tmp_path):
    """8B on 8 H100: crossover at 2/2 * 7/8 * 989e12/450e9 = 1923.06 tokens."""
    monkeypatch.setenv("COLUMNS", "140")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    plot = tmp_path / "ratios.svg"
    options = ["--model", str(config), "--dp", "8", "--zero", "3", "--plot", str(plot)]
    assert main(["cost", *options]) == 0
    printed = capsys.readouterr().out
    assert "8.03 billion parameters, 8 ranks, 4,096 tokens" in printed
    (row,) = [line for line in printed.splitlines() if "ZeRO-3, forward" in line]
    # 436.224 MB * 7/8 at 450 GB/s and 7 * 3.4 us; 4096 tokens * (436 Mflop + attention) at 989 T
    assert re.search(r"inside +436.2 MB +872 µs +2.08 ms +0.42 +yes +≥ 1,924 tokens", row)
    drawn = plot.read_text()
    assert "dp 8, tp 1, pp 1, ZeRO 3, sequences of 4,096 tokens" in drawn
    for label in ("ZeRO-3, forward: all-gather", "ZeRO-3, backward: gather, scatter"):
        assert label in drawn
    assert "#1f77b4" in drawn and "#ff7f0e" not in drawn  # both are one line, the first colour's
    assert printed.splitlines()[-1] == f"wrote {plot}"


def test_command_for_machines(capsys):
    options = ["--dp", "8", "--zero", "3", "--pp", "2", "--micro-batches", "4"]
    assert main(["cost", "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    layout = cost.Layout(dp=8, zero=3, pp=2, micro_batches=4)
    machine = cost.MACHINES["h100-nvlink"]
    assert found["memory"]["total"] == cost.training_memory(LLAMA, layout).total
    assert found["memory"]["fits"] is True
    assert found["layout"]["world_size"] == 16
    assert [(one["name"], one["ratio"], one["hidden"]) for one in found["overlaps"]] == [
        (one.name, one.ratio, one.hidden) for one in cost.overlaps(LLAMA, machine, layout)
    ]
    assert found["pipeline_bubble"] == 0.2


LARGE = ["--dp", "64", "--tp", "8", "--pp", "4", "--zero", "3", "--seq-len", "131072"]


@pytest.mark.parametrize("columns", [20, 80, 90])
def test_narrow_terminals_cut_no_word(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["cost", *LARGE]) == 0
    words = sorted(capsys.readouterr().out.split())
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["cost", *LARGE]) == 0
    printed = capsys.readouterr().out
    assert sorted(printed.split()) == words
    (row,) = [line for line in printed.splitlines() if "TP, QKV" in line]
    assert re.search(r"all-gather +inside +1.07 GB 2.11 ms +834 µs +2.53 no +tp ≤ 3", row)


def test_a_pipe_has_80_columns(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["cost", *LARGE]) == 0
    _, table = capsys.readouterr().out.split("fits")
    assert max(map(len, table.splitlines())) == 80


def test_command_finds_what_is_not_hidden(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    options = ["--machine", "h100-100gbe", "--dp", "8", "--pp", "4", "--micro-batches", "12"]
    assert main(["cost", *options]) == 0
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if "DP, backward" in line]
    assert " no " in row and "across" in row
    assert "stages idle 20.0% of a step" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "gpt5"], "must be one of gpt2, gpt2-xl, llama-3.1-8b"),
        (["--model", "{config}"], "has no 'num_hidden_layers'"),
        (["--machine", "abacus"], "invalid choice: 'abacus'"),
        (["--dp", "0"], "must be an integer from 1, got '0'"),
        (["--plot", "ratios.txt"], "--plot must end in one of"),
    ],
)
def test_command_says_what_is_wrong(options, message, capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "hidden_size": 8}')
    try:
        code = main(["cost", *(option.format(config=config) for option in options)])
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_command_measures_this_machine(capsys, monkeypatch):
    """Two ranks multiply and all-reduce; what they attain depends on the machine."""
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["cost", "--machine", "this", "--model", "gpt2", "--dp", "2"]) == 0
    printed = capsys.readouterr().out
    attained = re.search(r"this: ([\d,]+) Gflop/s .* ([\d.]+) GB/s inside", printed)
    assert float(attained[1].replace(",", "")) > 0
    assert float(attained[2]) > 0
    assert "DP, backward" in printed
