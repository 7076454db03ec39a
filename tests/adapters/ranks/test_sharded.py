"""The sharded training source: what is gathered is what was trained, in PEFT's form, and freezing cuts it loose."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

import torch.distributed as dist  # noqa: E402
from torch.nn import functional  # noqa: E402

from lorafsm.errors import InvalidField  # noqa: E402
from lorafsm_sglang.tiny_model import lora_fixture  # noqa: E402
from lorafsm_torch import check_lora, freeze_snapshot  # noqa: E402
from lorafsm_torch.sharded import ShardedAdapterSync, ShardedConfig, ShardedModel  # noqa: E402
from tests.adapters.ranks.shards import descend, trained_by_processes  # noqa: E402

X = torch.linspace(-1, 1, 2 * 5 * 64).view(2, 5, 64)


class Alone(dist.ProcessGroup):
    """A group of one: every collective is there at once."""

    def allreduce(self, tensors, *_):
        return self

    def wait(self, *_):
        return True


def alone() -> tuple[ShardedConfig, ShardedModel, ShardedAdapterSync]:
    config = ShardedConfig(tp=1)
    return config, ShardedModel(config, 0), ShardedAdapterSync(config, lambda _: Alone(0, 1))


def test_two_ranks_compute_and_train_what_one_does(tmp_path: Path):
    _config, model, sync = alone()
    for _ in range(3):
        descend(model, X, sync.group)
    whole = sync.gather_full_adapter(sync.export_local_adapter(dict(model.named_parameters())), all_gather=False)
    output = model(X, sync.group)
    for rank in trained_by_processes(tmp_path, X, steps=3):
        assert torch.allclose(rank["output"], output, rtol=1e-4, atol=1e-4)
        assert rank["adapter"].keys() == whole.keys()
        for name, tensor in whole.items():
            assert torch.allclose(rank["adapter"][name], tensor, atol=1e-6), name


def test_the_gathered_adapter_does_what_the_sharded_one_did():
    """The PEFT tensors, merged into dense layers in the order that serving knows, give the same output."""
    config, model, sync = alone()
    adapter = sync.export_local_adapter(dict(model.named_parameters()))
    x = X
    for number, blocks in enumerate(model.decoder["layers"]):
        weights = {name: layer.weight for block in blocks.values() for name, layer in block.items()}
        q, k, v = by_groups(config, weights["linear_qkv"])
        gate, up = weights["linear_fc1"].chunk(2, 0)
        dense = {
            "q_proj": q, "k_proj": k, "v_proj": v, "gate_proj": gate, "up_proj": up,
            "o_proj": weights["linear_proj"], "down_proj": weights["linear_fc2"],
        }  # fmt: skip
        for module, weight in dense.items():
            block = "mlp" if module in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            prefix = f"base_model.model.model.layers.{number}.{block}.{module}.lora_"
            delta = adapter[f"{prefix}B.weight"] @ adapter[f"{prefix}A.weight"]
            dense[module] = weight + config.alpha / config.rank * delta
        normed = functional.rms_norm(x, (config.hidden,))
        heads = [
            functional.linear(normed, dense[name]).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        ]
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + functional.linear(seen.transpose(1, 2).flatten(-2), dense["o_proj"])
        normed = functional.rms_norm(x, (config.hidden,))
        gate, up = (functional.linear(normed, dense[name]) for name in ("gate_proj", "up_proj"))
        hidden = functional.silu(gate) * up
        x = x + functional.linear(hidden, dense["down_proj"])
    assert torch.allclose(x, model(X, sync.group), atol=1e-5)


def by_groups(config: ShardedConfig, fused: torch.Tensor) -> list[torch.Tensor]:
    """Megatron's fused weight, group by group, row by row: another way than the one that is tested."""
    rows: tuple[list[torch.Tensor], ...] = ([], [], [])
    per_group = config.heads // config.kv_heads
    at = 0
    for _ in range(config.kv_heads):
        for part, count in enumerate((per_group, 1, 1)):
            rows[part].append(fused[at : at + count * config.head_dim])
            at += count * config.head_dim
    return [torch.cat(part) for part in rows]


def test_names_and_shapes_are_those_that_the_engines_serve():
    _, model, sync = alone()
    adapter = sync.export_local_adapter(dict(model.named_parameters()))
    tensors, _ = lora_fixture("A")
    assert {name: tensor.shape for name, tensor in adapter.items()} == {n: t.shape for n, t in tensors.items()}
    check_lora(sync.config_dict(), {name: tuple(tensor.shape) for name, tensor in adapter.items()})


def test_what_is_gathered_shares_the_live_parameters_and_what_is_frozen_does_not():
    _, model, sync = alone()
    parameters = dict(model.named_parameters())
    full = sync.gather_full_adapter(sync.export_local_adapter(parameters), all_gather=False)
    live = {tensor.untyped_storage().data_ptr() for tensor in parameters.values()}
    shared = [name for name, tensor in full.items() if tensor.untyped_storage().data_ptr() in live]
    assert len(shared) >= len(parameters), "the fused factors that are taken apart may be copies, no others"
    snapshot = freeze_snapshot(sync.config_dict(), full)
    digest, kept = snapshot.digest, {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.add_(1.0)
    assert not any(torch.equal(full[name], kept[name]) for name in shared), "the mutation reached what was gathered"
    snapshot.verify()
    assert snapshot.digest == digest
    assert all(torch.equal(snapshot.tensors[name], kept[name]) for name in kept)


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        (lambda p: p.pop("decoder.layers.1.mlp.linear_fc2.adapter.linear_in.weight"), "linear_fc2", "missing"),
        (lambda p: p.update(dict.fromkeys(list(p)[:1], torch.zeros(3, 3))), "linear_qkv", "of shape [8, 64]"),
        (lambda p: p.update({k: v.bfloat16() for k, v in list(p.items())[:1]}), "linear_qkv", "torch.float32"),
    ],
)
def test_wrong_parameters_are_refused_by_name_before_any_collective(change, field: str, says: str):
    config, model, _ = alone()

    def no_group(_: int) -> dist.ProcessGroup:
        raise AssertionError("a collective was begun")

    parameters = dict(model.named_parameters())
    change(parameters)
    with pytest.raises(InvalidField) as refused:
        ShardedAdapterSync(config, no_group).export_local_adapter(parameters)
    assert field in str(refused.value.field)
    assert says in refused.value.message


@pytest.mark.parametrize("tp", [0, 3, 4])
def test_ranks_that_do_not_divide_the_layers_are_refused(tp: int):
    with pytest.raises(InvalidField, match="kv_heads"):
        ShardedConfig(tp=tp)


def test_a_rank_that_raises_releases_its_peer_at_once():
    """It drops its group, which ends the collective that the other one waits in; `renew` makes the next one work."""
    config = ShardedConfig()
    store = dist.TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=20), wait_for_workers=False)
    models = [ShardedModel(config, rank) for rank in range(2)]

    def maker(rank: int):
        def make(generation: int) -> dist.ProcessGroup:
            group = dist.PrefixStore(f"tp/{generation}", store.clone())
            return dist.ProcessGroupGloo(group, rank, 2, timedelta(seconds=30))

        return make

    syncs = [ShardedAdapterSync(config, maker(rank)) for rank in range(2)]
    parameters = [dict(model.named_parameters()) for model in models]
    results: dict[int, object] = {}

    def export(rank: int, given) -> None:
        try:
            results[rank] = syncs[rank].export_local_adapter(given)
        except Exception as error:
            results[rank] = error

    def together(*given) -> None:
        threads = [threading.Thread(target=export, args=(rank, each)) for rank, each in enumerate(given)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive(), "a rank is left in a collective"

    together(*parameters)
    assert results[0].keys() == results[1].keys()
    together(parameters[0], {})
    assert isinstance(results[1], InvalidField)
    assert isinstance(results[0], RuntimeError), results[0]
    for sync in syncs:
        sync.renew()
    together(*parameters)
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0] if ".lora_B" in name)
