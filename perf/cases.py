"""The benchmark's problems: read from shapes/*.json, given data, without any timing.

A case names an operation, its dimensions and attributes, and the tensors that are not as the operation declares them
by default. The shapes come from the operation itself (`portile.declared`, `portile.infer`); `data` says where random
normal values would not do; `routing` makes tables of tokens and experts that belong together."""

import fnmatch
import functools
import json
import math
from pathlib import Path

import numpy as np
import portile

FOLDER = Path(__file__).parent / "shapes"

SIZES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2, "e4m3": 1, "e4m3fnuz": 1, "e5m2": 1, "e2m1x2": 1, "e5m6x8": 1,
         "ue8m0x4": 4, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u32": 4, "bool": 1}
# How memory of a type is held by a framework, so that none needs to know fp8: the name goes along (portile.typed).
STORAGE = {"e4m3": "uint8", "e2m1x2": "uint8", "e5m6x8": "uint8", "ue8m0x4": "int32", "f32": "float32",
           "f64": "float64", "f16": "float16", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
           "u8": "uint8", "bool": "bool"}

# A zero in every digit of four bits: no code of twelve, wherever it begins, has an exponent of infinity or NaN.
E5M6_FINITE = 0xDD

# Extents for a run that only shows that a case is legal.
TINY = {"num_tokens": 128, "hidden_size": 256, "num_expanded_tokens": 128, "num_rows": 128, "num_cols": 128,
        "num_heads": 2, "numel": 1024, "num_partials": 4, "M": 256, "N": 128, "K": 256, "R": 256, "E": 2,
        "num_batches": 2, "head_dim": 256}
KEEP_HEAD = ("rope.apply",)


def load(pattern="*"):
    """Cases whose operation fits the pattern, in the order of the files."""
    cases = []
    for file in sorted(FOLDER.glob("*.json")):
        for case in json.loads(file.read_text())["cases"]:
            if fnmatch.fnmatch(case["op"], pattern):
                cases.append(case)
    return cases


@functools.cache
def _operations():
    return {o["name"]: o for o in portile.ops()}


def _number(value, names):
    if isinstance(value, str) and value.startswith("="):
        value = value[1:]
    elif not isinstance(value, str):
        return value
    result = eval(value, {"__builtins__": {}, "ceil": math.ceil}, names)  # formulas of our own data files
    return int(result)


class Problem:
    """A case with all shapes known. `tensors`: {field: [(dtype, shape, strides), ...]}."""

    def __init__(self, case, tiny=False):
        self.case, self.op = case, case["op"]
        self.info = _operations()[self.op]
        self.fields = {f["name"]: f for f in self.info["fields"]}
        self.dims = {}
        for name, value in case["dims"].items():
            value = _number(value, self.dims)
            if tiny and name in TINY and not (name == "head_dim" and self.op in KEEP_HEAD):
                value = min(value, TINY[name])
            self.dims[name] = value
        self.arrays = {}
        if "routing" in case:
            self._route(**case["routing"])
        self.attributes = {}
        for name, value in case.get("attributes", {}).items():
            formula = isinstance(value, str) and value.startswith("=")
            self.attributes[name] = _number(value, self.dims) if formula else value
        for name, field in self.fields.items():  # a few dimensions are attributes of the same name
            if name in self.attributes:
                self.dims.pop(name, None)
        self.names = {**self.attributes, **self.dims, **self.__dict__.get("counts", {})}
        self._shapes(case, tiny)

    def _route(self, num_experts, num_ep_ranks, alignment):
        """Which slot of which token goes to which expert of this rank, as after a dispatch: every token has drawn its
        experts from those of all ranks, and those that drew none of this rank's are not here."""
        tokens, k = self.dims["num_tokens"], self.dims["num_topk"]
        rng = np.random.default_rng(7)
        others = num_experts * (num_ep_ranks - 1)
        ways = [math.comb(num_experts, n) * math.comb(others, k - n) for n in range(k + 1)]
        chance = np.array([0] + [w / sum(ways[1:]) for w in ways[1:]])
        here = np.argsort(rng.random((tokens, k)), 1) < rng.choice(k + 1, tokens, p=chance / chance.sum())[:, None]
        order = np.argsort(rng.random((tokens, num_experts)), 1)
        nth = np.cumsum(here, 1) - 1  # each slot that is here takes the next of the token's shuffled experts
        topk = np.where(here, np.take_along_axis(order, np.clip(nth, 0, num_experts - 1), 1), -1).astype(np.int64)
        flat = topk.ravel()
        live = np.flatnonzero(flat >= 0)
        by_expert = live[np.argsort(flat[live], kind="stable")]
        counts = np.bincount(flat[live], minlength=num_experts)
        padded = -(-counts // alignment) * alignment
        end = np.cumsum(padded)
        start = end - padded
        rows = int(end[-1])
        row_of = np.concatenate([np.arange(s, s + n) for s, n in zip(start, counts)])
        to_pos = np.full(tokens * k, -1, np.int32)
        to_pos[by_expert] = row_of
        token_topk = np.full(rows, -1, np.int32)
        token_topk[row_of] = by_expert
        expert = np.full(rows, -1, np.int32)
        expert[row_of] = flat[by_expert]
        self.dims.update(num_rows=rows, num_expanded_tokens=rows)
        self.counts = {"num_live": len(live)}
        self.arrays.update(
            topk_idx=topk, token_topk_to_pos=to_pos.reshape(tokens, k), pos_to_token_topk=token_topk,
            pos_to_token=np.where(token_topk >= 0, token_topk // k, -1).astype(np.int32), pos_to_expert=expert,
            expert_start=start.astype(np.int32), expert_end=end.astype(np.int32),
            num_live_per_expert=counts.astype(np.int32))  # yapf: disable

    def _shapes(self, case, tiny):
        self.tensors = {}
        known = {k: v for k, v in self.dims.items() if k in self.info["dimensions"]}
        explicit = case.get("tiny_shapes" if tiny else "shapes", {})
        wanted = dict(case.get("tensors", {}))
        lists = case.get("lists", {})
        if not explicit:
            for name, t in portile.declared(self.op, wanted, **known, **self.attributes).items():
                strides = None
                layout = case.get("strides", {}).get(name)
                if layout == "column":
                    rows, columns = t["shape"]
                    strides = [1, -(-rows // 4) * 4]
                elif layout == "half of wider rows":
                    strides = [2 * t["shape"][1], 1]
                self.tensors[name] = [(t["dtype"], t["shape"], strides)] * lists.get(name, 1)
        for name, shapes in explicit.items():
            self.tensors[name] = [(self.fields[name]["dtypes"][0], shape, None) for shape in shapes]
        # Outputs as the operation wants them: element type by the attributes, scales by their layout.
        given = {n: self._specs(n) for n in self.tensors if self.fields[n]["role"] != "out" or wanted.get(n)}
        for name, t in portile.infer(self.op, **given, **known, **self.attributes).items():
            field, _, index = name.partition("[")
            entry = (t["dtype"], t["shape"], t["strides"])
            if index:
                self.tensors.setdefault(field, []).append(entry)
            elif field in self.tensors:
                self.tensors[field] = [entry] * lists.get(field, 1)

    def _specs(self, name):
        specs = [portile.spec(*t) for t in self.tensors[name]]
        return specs if self.fields[name]["kind"] == "tensor_list" else specs[0]

    def specs(self):
        return {**{n: self._specs(n) for n in self.tensors}, **self.attributes}

    def written(self, name):
        """How often each element of an in-out tensor moves: twice, or once where it is only overwritten."""
        adds = self.attributes.get("accumulate", not any(f == "accumulate" for f in self.fields))
        if name == "residual_grad" and self.op == "mhc.pre_norm_fn_backward":
            adds = self.attributes.get("accumulate_residual", True)
        return 2 if adds else 1

    def bytes(self):
        if "bytes" in self.case:
            return _number(self.case["bytes"], self.names)
        total = 0
        for name, tensors in self.tensors.items():
            times = self.written(name) if self.fields[name]["role"] == "inout" else 1
            total += times * sum(SIZES[dtype] * math.prod(shape) for dtype, shape, _ in tensors)
        return total

    def flop(self):
        return _number(self.case["flop"], self.names) if "flop" in self.case else None

    def allocate(self, memory, seed=0):
        """Fields of one call: new tensors with data, and the attributes."""
        rng = memory.generator(seed)
        fields = dict(self.attributes)
        for name, tensors in self.tensors.items():
            made = [self._tensor(memory, rng, name, *t) for t in tensors]
            fields[name] = made if self.fields[name]["kind"] == "tensor_list" else made[0]
        return fields

    def _tensor(self, memory, rng, name, dtype, shape, strides):
        count = math.prod(shape)
        if strides is not None and count:
            count = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
        role = self.fields[name]["role"]
        if name in self.arrays and role != "out":
            flat = memory.array(self.arrays[name].ravel())
        elif role == "out":
            flat = memory.zeros(count, dtype)
        else:
            recipe = self.case.get("data", {}).get(name) or _default_recipe(name, dtype)
            flat = self._data(memory, rng, recipe, dtype, count, shape)
        return _typed(memory.view(flat, shape, strides), dtype)

    def _data(self, memory, rng, recipe, dtype, count, shape):
        kind, *rest = recipe.split()
        if kind == "integer":
            low, high = (_number(r, self.names) for r in rest)
            return memory.integers(rng, low, high, count, dtype)
        if kind == "first":  # 1 so often, then 0
            return memory.array((np.arange(count) < _number(rest[0], self.names)).astype(STORAGE[dtype]))
        if kind == "distinct":
            high = _number(rest[0], self.names)
            tokens, k = shape
            return memory.array(np.argsort(np.random.default_rng(3).random((tokens, high)), 1)[:, :k].ravel().astype(
                STORAGE[dtype]))
        if kind == "segment":
            rows, experts = (_number(r, self.names) for r in rest[1:3])
            share = np.ones(experts) if rest[3:] != ["skewed"] else 1 / np.arange(1, experts + 1)  # as Zipf's law has it
            bounds = np.floor(np.concatenate([[0], np.cumsum(share)]) / share.sum() * rows + 1e-6)
            return memory.array((bounds[:-1] if rest[0] == "start" else bounds[1:]).astype(np.int32))
        if recipe == "power of two":
            return memory.powers(rng, count)
        return getattr(memory, kind)(rng, count, dtype)


def _default_recipe(name, dtype):
    if dtype in ("e4m3", "e2m1x2", "e5m6x8", "ue8m0x4"):
        return "codes"
    if dtype == "bool":
        return "integer 0 2"
    if dtype.startswith(("i", "u")):
        return "integer 0 1"
    return "power of two" if name.endswith("_sf") and dtype == "f32" else "normal"


def _typed(tensor, dtype):
    return tensor if dtype in ("f32", "f64", "f16", "i8", "i16", "i32", "i64", "u8", "bool") or (
        dtype == "bf16" and "bfloat16" in str(tensor.dtype)) else portile.typed(tensor, dtype)


class NumpyMemory:
    """Host memory without any framework."""

    def generator(self, seed):
        return np.random.default_rng(seed)

    def array(self, values):
        return np.ascontiguousarray(values)

    def zeros(self, count, dtype):
        return np.zeros(count, STORAGE.get(dtype, "uint16"))

    def _as(self, values, dtype):
        if dtype == "bf16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(STORAGE[dtype])

    def normal(self, rng, count, dtype):
        return self._as(rng.standard_normal(count, np.float32), dtype)

    def uniform(self, rng, count, dtype):
        return self._as(rng.random(count, np.float32), dtype)

    def positive(self, rng, count, dtype):
        return self._as(rng.random(count, np.float32) + np.float32(0.25), dtype)

    def powers(self, rng, count):
        return np.exp2(rng.integers(-3, 4, count)).astype(np.float32)

    def integers(self, rng, low, high, count, dtype):
        return rng.integers(low, high, count).astype(STORAGE[dtype])

    def codes(self, rng, count, dtype):
        if dtype == "ue8m0x4":
            return rng.integers(124, 131, 4 * count).astype(np.uint8).view(np.int32)
        if dtype == "e4m3":  # no NaN
            return (rng.integers(0, 127, count) + 128 * rng.integers(0, 2, count)).astype(np.uint8)
        codes = rng.integers(0, 256, count).astype(np.uint8)
        return codes & np.uint8(E5M6_FINITE) if dtype == "e5m6x8" else codes

    def view(self, flat, shape, strides):
        if strides is None or not flat.size:
            return flat.reshape(shape)
        return np.lib.stride_tricks.as_strided(flat, shape, [s * flat.itemsize for s in strides])


class TorchMemory:
    """torch on any device."""

    def __init__(self, device):
        import torch
        self.torch, self.device = torch, torch.device(device)

    def generator(self, seed):
        return self.torch.Generator(self.device).manual_seed(seed)

    def _type(self, dtype):
        return getattr(self.torch, "bfloat16" if dtype == "bf16" else STORAGE[dtype])

    def array(self, values):
        return self.torch.tensor(values, device=self.device)

    def zeros(self, count, dtype):
        return self.torch.zeros(count, dtype=self._type(dtype), device=self.device)

    def normal(self, rng, count, dtype):
        # In the type itself: a float32 detour would need three times the memory.
        return self.torch.empty(count, dtype=self._type(dtype), device=self.device).normal_(generator=rng)

    def uniform(self, rng, count, dtype):
        return self.torch.empty(count, dtype=self._type(dtype), device=self.device).uniform_(generator=rng)

    def positive(self, rng, count, dtype):
        return self.uniform(rng, count, dtype).add_(0.25)

    def powers(self, rng, count):
        return self.torch.exp2(self.integers(rng, -3, 4, count, "f32"))

    def integers(self, rng, low, high, count, dtype):
        values = self.torch.randint(low, high, (count,), generator=rng, device=self.device,
                                    dtype=self.torch.int64 if dtype in ("bool", "f32") else self._type(dtype))
        return values.to(self._type(dtype))

    def codes(self, rng, count, dtype):
        bytes_of = lambda low, high, n: self.integers(rng, low, high, n, "u8")
        if dtype == "ue8m0x4":
            return bytes_of(124, 131, 4 * count).view(self.torch.int32)
        if dtype == "e4m3":  # no NaN
            return bytes_of(0, 127, count) + bytes_of(0, 2, count) * 128
        return bytes_of(0, 256, count) & (E5M6_FINITE if dtype == "e5m6x8" else 0xFF)

    def view(self, flat, shape, strides):
        return flat.view(shape) if strides is None or not flat.numel() else flat.as_strided(shape, strides)
