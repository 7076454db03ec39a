"""A training side in Megatron's shape: LoRA layers sharded over tensor-parallel ranks, gathered to one PEFT adapter.

It is what the transport and the ranks' agreement are tried with where Megatron is not installed.  Layers, layouts and
names are Megatron's: a fused `linear_qkv` by query groups, a fused gated `linear_fc1`, row-parallel `linear_proj` and
`linear_fc2`.  `ShardedAdapterSync` has the function names and types of Relax's `LoraAdapterSync`, and its habit of
handing out live parameters: where nothing has to be gathered, the result shares their storage (freezing clones).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from attrs import field, frozen
from torch.nn import functional

from lorafsm.errors import InvalidField

GroupMaker: TypeAlias = Callable[[int], dist.ProcessGroup]
"""Builds this rank's tensor-parallel group of a generation (0, 1, ...: one more after each failure)."""

_PEFT_PREFIX = "base_model.model.model.layers"
_BLOCKS = {"linear_qkv": "self_attention", "linear_proj": "self_attention", "linear_fc1": "mlp", "linear_fc2": "mlp"}


@frozen(kw_only=True)
class ShardedConfig:
    """Sizes of the model and its LoRA; `tp` ranks share each layer.  Raises InvalidField where that does not divide."""

    hidden: int = 64
    intermediate: int = 160
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    rank: int = 8
    alpha: int = 16
    dtype: torch.dtype = torch.float32
    tp: int = field(default=2)

    @tp.validator
    def _divides(self, _: Any, value: int) -> None:
        for name in ("kv_heads", "intermediate"):
            if value < 1 or getattr(self, name) % value:
                raise InvalidField("tp", f"must divide {name} = {getattr(self, name)}")

    @property
    def group_rows(self) -> int:
        """Rows of one query group in the fused linear_qkv: its queries, one key, one value."""
        return (self.heads // self.kv_heads + 2) * self.head_dim

    def sides(self, layer: str) -> tuple[int, int]:
        """(inputs, outputs) of the whole layer."""
        return {
            "linear_qkv": (self.hidden, self.kv_heads * self.group_rows),
            "linear_proj": (self.heads * self.head_dim, self.hidden),
            "linear_fc1": (self.hidden, 2 * self.intermediate),
            "linear_fc2": (self.intermediate, self.hidden),
        }[layer]

    def axis(self, layer: str, factor: str) -> int | None:
        """The axis along which a factor is sharded; None: every rank holds all of it."""
        if layer in ("linear_qkv", "linear_fc1"):
            return 0 if factor == "linear_out" else None
        return 1 if factor == "linear_in" else None

    def local_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every LoRA parameter of one rank."""
        shapes: dict[str, tuple[int, ...]] = {}
        for number in range(self.layers):
            for layer, block in _BLOCKS.items():
                inputs, outputs = self.sides(layer)
                for factor, whole in (("linear_in", (self.rank, inputs)), ("linear_out", (outputs, self.rank))):
                    shape = list(whole)
                    if (axis := self.axis(layer, factor)) is not None:
                        shape[axis] //= self.tp
                    shapes[f"decoder.layers.{number}.{block}.{layer}.adapter.{factor}.weight"] = tuple(shape)
        return shapes


class _Copy(torch.autograd.Function):  # type: ignore[misc]
    """Identity forward, sum over the ranks backward: the way into a column-parallel layer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _summed(grad, ctx.group), None


class _Reduce(torch.autograd.Function):  # type: ignore[misc]
    """Sum over the ranks forward, identity backward: the way out of a row-parallel layer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def _summed(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    total = x.contiguous().clone()
    group.allreduce([total]).wait()
    return total


def _shard(whole: torch.Tensor, axis: int | None, layer: str, tp: int, tp_rank: int) -> torch.Tensor:
    """One rank's part; of the fused gate and up it is a part of each."""
    if axis is None:
        return whole
    parts = whole.chunk(2, 0) if layer == "linear_fc1" else (whole,)
    return torch.cat([part.chunk(tp, axis)[tp_rank] for part in parts])


def _joined(shards: list[torch.Tensor], axis: int, layer: str) -> torch.Tensor:
    """What `_shard` took apart."""
    if layer != "linear_fc1":
        return torch.cat(shards, axis)
    halves = [shard.chunk(2, 0) for shard in shards]
    return torch.cat([half[i] for i in (0, 1) for half in halves])


class ShardedLoraLinear(torch.nn.Module):  # type: ignore[misc]
    """One rank's part of a frozen linear layer and of its LoRA, column- or row-parallel."""

    def __init__(self, config: ShardedConfig, layer: str, tp_rank: int, draw: torch.Generator) -> None:
        super().__init__()
        inputs, outputs = config.sides(layer)
        self.column = config.axis(layer, "linear_out") == 0
        self.scale = config.alpha / config.rank
        whole = torch.randn(outputs, inputs, generator=draw) / inputs**0.5
        parts = {
            "linear_in": torch.randn(config.rank, inputs, generator=draw) / inputs**0.5,
            "linear_out": torch.randn(outputs, config.rank, generator=draw) * 0.1,
        }
        # Every rank draws the whole layer and keeps its shard, so that the model is the same for every `tp`.
        mine = _shard(whole, 0 if self.column else 1, layer, config.tp, tp_rank)
        self.register_buffer("weight", mine.to(config.dtype).contiguous())
        self.adapter = torch.nn.ModuleDict()
        for factor, value in parts.items():
            shard = _shard(value, config.axis(layer, factor), layer, config.tp, tp_rank)
            linear = torch.nn.Linear(shard.shape[1], shard.shape[0], bias=False, dtype=config.dtype)
            linear.weight.data.copy_(shard)
            self.adapter[factor] = linear

    def forward(self, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Column-parallel: whole input, this rank's outputs.  Row-parallel: this rank's inputs, whole output."""
        down, up = self.adapter["linear_in"], self.adapter["linear_out"]
        weight: torch.Tensor = self.get_buffer("weight")
        if self.column:
            base = functional.linear(_Copy.apply(x, group), weight)
            return base + self.scale * up(_Copy.apply(down(x), group))
        base = _Reduce.apply(functional.linear(x, weight), group)
        return base + self.scale * up(_Reduce.apply(down(x), group))


class ShardedModel(torch.nn.Module):  # type: ignore[misc]
    """A small decoder of `ShardedLoraLinear` layers; only the LoRA parameters are trained."""

    def __init__(self, config: ShardedConfig, tp_rank: int, *, seed: int = 0) -> None:
        super().__init__()
        if not 0 <= tp_rank < config.tp:
            raise InvalidField("tp_rank", f"must be 0 to {config.tp - 1}")
        draw = torch.Generator().manual_seed(seed)
        self.config = config
        self.decoder = torch.nn.ModuleDict({"layers": torch.nn.ModuleList()})
        for _ in range(config.layers):
            blocks = torch.nn.ModuleDict({"self_attention": torch.nn.ModuleDict(), "mlp": torch.nn.ModuleDict()})
            for layer, block in _BLOCKS.items():
                blocks[block][layer] = ShardedLoraLinear(config, layer, tp_rank, draw)
            self.decoder["layers"].append(blocks)

    def forward(self, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """Hidden states (batch, tokens, hidden) through all layers; every rank returns the whole."""
        c = self.config
        for blocks in self.decoder["layers"]:
            attention, mlp = blocks["self_attention"], blocks["mlp"]
            fused = attention["linear_qkv"](_normed(x), group).unflatten(
                -1, (-1, c.heads // c.kv_heads + 2, c.head_dim)
            )
            q, k, v = fused[..., :-2, :], fused[..., -2:-1, :], fused[..., -1:, :]
            q, k, v = (t.expand(q.shape).flatten(-3, -2).transpose(-3, -2) for t in (q, k, v))
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + attention["linear_proj"](seen.transpose(-3, -2).flatten(-2), group)
            gate, up = mlp["linear_fc1"](_normed(x), group).chunk(2, -1)
            x = x + mlp["linear_fc2"](functional.silu(gate) * up, group)
        return x


def _normed(x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],))


class ShardedAdapterSync:
    """Exports and gathers the LoRA of a `ShardedModel`; every rank of the group calls the same in the same order.

    A rank that raises drops its group, which ends the collectives that its peers wait in; `renew` on every rank then
    builds new ones.  Nothing here waits longer than the group's own time-out.
    """

    def __init__(self, config: ShardedConfig, make_group: GroupMaker) -> None:
        self._config = config
        self._make_group = make_group
        self._group: dist.ProcessGroup | None = None
        self._generation = 0

    @property
    def group(self) -> dist.ProcessGroup:
        """The tensor-parallel group; built where there is none (a collective)."""
        if self._group is None:
            self._group = self._make_group(self._generation)
        return self._group

    def config_dict(self) -> dict[str, Any]:
        """The adapter's serving config in PEFT's form."""
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self._config.rank,
            "lora_alpha": self._config.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
        }

    def export_local_adapter(self, all_params: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """This pipeline rank's adapter in PEFT naming, tensor-parallel shards gathered.  Collective.

        `all_params` are the model's named parameters.  InvalidField, before any collective, names the one that is
        missing, foreign in shape or dtype.
        """
        try:
            local = self._checked(all_params)
            whole = self._gathered(local)
        except BaseException:
            self.release()
            raise
        return self._in_peft_naming(whole)

    def gather_full_adapter(
        self, local_adapter: dict[str, torch.Tensor], *, all_gather: bool
    ) -> dict[str, torch.Tensor] | None:
        """The full adapter: with one pipeline rank it is there already, tensors shared, nothing copied.

        `all_gather` says who gets it where there are more pipeline ranks, which this source does not have.
        """
        return dict(local_adapter)

    def release(self) -> None:
        """Leave the group, so that peers in its collectives are released."""
        self._group = None

    def renew(self) -> None:
        """On every rank after a failure on any: the next collective builds another group."""
        self._group = None
        self._generation += 1

    def _checked(self, all_params: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        local = {}
        for name, shape in self._config.local_shapes().items():
            if name not in all_params:
                raise InvalidField(name, "is missing on this rank; export the same model on all")
            tensor = all_params[name].detach()
            if tuple(tensor.shape) != shape or tensor.dtype is not self._config.dtype:
                found = f"{tensor.dtype} of shape {list(tensor.shape)}"
                raise InvalidField(name, f"must be {self._config.dtype} of shape {list(shape)}, not {found}")
            local[name] = tensor
        return local

    def _gathered(self, local: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """All shards of all ranks in one collective; what is not sharded stays this rank's live tensor."""
        if self._config.tp == 1:
            return dict(local)
        sharded = [name for name in local if self._axis(name) is not None]
        flat = torch.cat([local[name].reshape(-1).cpu() for name in sharded])
        parts = [torch.empty_like(flat) for _ in range(self._config.tp)]
        self.group.allgather([parts], [flat]).wait()
        sizes = [local[name].numel() for name in sharded]
        whole = dict(local)
        for name, *shards in zip(sharded, *(part.split(sizes) for part in parts), strict=True):
            axis = self._axis(name)
            assert axis is not None
            whole[name] = _joined([shard.view(local[name].shape) for shard in shards], axis, name.split(".")[-4])
        return whole

    def _axis(self, name: str) -> int | None:
        layer, _, factor = name.split(".")[-4:-1]
        return self._config.axis(layer, factor)

    def _in_peft_naming(self, whole: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        adapter = {}
        for name, tensor in whole.items():
            number, (layer, _, factor) = name.split(".")[2], name.split(".")[-4:-1]
            side = "lora_A" if factor == "linear_in" else "lora_B"
            block = "mlp" if layer in ("linear_fc1", "linear_fc2") else "self_attn"
            for module, part in self._modules(layer, factor, tensor):
                adapter[f"{_PEFT_PREFIX}.{number}.{block}.{module}.{side}.weight"] = part
        return adapter

    def _modules(self, layer: str, factor: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """A fused layer's factor as those of the modules that serving knows; they share A and split B's rows."""
        names = {
            "linear_qkv": ("q_proj", "k_proj", "v_proj"),
            "linear_proj": ("o_proj",),
            "linear_fc1": ("gate_proj", "up_proj"),
            "linear_fc2": ("down_proj",),
        }[layer]
        if factor == "linear_in" or len(names) == 1:
            return [(name, tensor) for name in names]
        if layer == "linear_fc1":
            return list(zip(names, tensor.chunk(2, 0), strict=True))
        c = self._config
        by_group = tensor.unflatten(0, (c.kv_heads, c.group_rows))
        queries = (c.heads // c.kv_heads) * c.head_dim
        split = by_group.split([queries, c.head_dim, c.head_dim], 1)
        return [(name, part.flatten(0, 1)) for name, part in zip(names, split, strict=True)]
