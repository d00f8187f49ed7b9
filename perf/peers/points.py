"""What a grid's points are made of: a Portile problem, a call of the peer on the same tensors, and rules of agreement.

A point's `call(library, tensors)` runs the peer and returns {field of the operation: the peer's result}. `tensors` is
a `Tensors`: the fields as the peer's framework has them. Nothing here needs torch or a GPU, so that every mapping can
be tested without either."""

import dataclasses
import json
from pathlib import Path
from typing import Callable

GRIDS = Path(__file__).parent / "grids"


@dataclasses.dataclass
class Point:
    kernel: str  # name in the peer's grid
    params: dict
    case: dict  # as perf/cases.py reads it
    call: Callable
    rules: dict  # {field: rule of agree.py}
    note: str = ""  # what the two sides do not have in common
    valid_rows: str = ""  # a field that is negative at rows whose results are not defined
    prepare: Callable | None = None  # makes fields fit each other, before either side runs
    extra: dict = dataclasses.field(default_factory=dict)  # more for the record
    kernels_only: bool = False  # the peer's grid leaves out the copies of this call

    @property
    def op(self):
        return self.case["op"]

    @property
    def name(self):
        return title(self.kernel, self.params)

    @property
    def compile_key(self):
        """Points that share it share the peer's compiled kernel, up to what the peer makes of the number of rows."""
        return title(self.kernel, {k: v for k, v in self.params.items() if k not in ("n", "N", "numel")})


def title(kernel, params):
    def text(value):
        if isinstance(value, bool):
            return "yes" if value else "no"
        return "x".join(map(text, value)) if isinstance(value, list) else str(value)
    return f"{kernel}({', '.join(f'{k}={text(v)}' for k, v in params.items())})"


def lines(name):
    """The points of grids/NAME.jsonl: {"kernel": ..., "params": {...}}."""
    return [json.loads(line) for line in (GRIDS / f"{name}.jsonl").read_text().splitlines() if line.strip()]


def problem(op, dims, rules, call, *, tensors=None, attributes=None, note="", valid_rows="", prepare=None, extra=None, **more):
    """The parts of a Point that a mapping tells."""
    case = {"op": op, "name": "", "dims": dims, "tensors": tensors or {}, "attributes": attributes or {}, **more}
    return {"case": case, "rules": rules, "call": call, "note": note, "valid_rows": valid_rows,
            "prepare": prepare, "extra": extra or {}}


class Grid:
    """A peer's grid: the mapping of each kernel name, and the names that nothing here answers to, with the reason. Its
    points are those of grids/NAME.jsonl, or what `points` yields."""

    def __init__(self, name, unmapped, points=None):
        self.unmapped, self.mappings = unmapped, {}
        self.lines = points or (lambda: lines(name))

    def map(self, *kernels):
        def register(function):
            for kernel in kernels:
                self.mappings[kernel] = function
            return function
        return register

    def point(self, line):
        kernel, params = line["kernel"], line["params"]
        plain = kernel.removesuffix("(kernel only)")
        return Point(kernel, params, **self.mappings[plain](plain, params), kernels_only=plain != kernel)

    def load(self):
        """(points, [(name, reason)] of those not mapped)"""
        points, left = [], []
        for line in self.lines():
            reason = self.unmapped.get(line["kernel"])
            if reason:
                left.append((title(line["kernel"], line["params"]), reason))
            else:
                points.append(self.point(line))
        return points, left


class Deferred:
    """A result that is needed only for comparing: computed outside of the timed launches."""

    def __init__(self, compute):
        self.compute = compute


class Tensors:
    """The fields of one call as the peer takes them. Memory that the operation only reads is shared with Portile's
    call; what is written is the peer's own, with the same values to begin with."""

    def __init__(self, fields, roles, view, clone, new):
        """fields  Portile's call: {field: tensor, typed tensor, list of them, or attribute}
        roles   {field: "in", "out" or "inout"} of those that are tensors
        view    a tensor of a field in the type that the peer wants
        clone   a copy with the same strides
        new     (shape, dtype name) -> memory"""
        self.fields, self.roles, self.view, self.clone, self.new = fields, roles, view, clone, new
        self.made = {}

    def once(self, name, make):
        """Something made at the first call: what the peer keeps between its own calls."""
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def __call__(self, name):
        """None where the problem has no such field."""
        if name not in self.made:
            value = self.fields.get(name)
            if value is None:
                return None
            own = self.clone if self.roles[name] != "in" else lambda v: v
            each = lambda v: self.view(own(v))
            self.made[name] = [each(v) for v in value] if isinstance(value, list) else each(value)
        return self.made[name]


# --- what the mappings of both versions of the peer share -----------------------------------------------------------------

FORMATS = {"bf16": "bf16", "fp32": "f32", "e4m3": "e4m3", "e2m1": "e2m1x2"}
# An element of bf16 that rounds the other way, after sums in another order.
ROUNDED = {"rule": "ulp", "ulp": 1}
# Codes and scales of values that are sums in another order: an amax at the edge of a binade moves 32 or 128 codes.
FEW = {"rule": "few", "fraction": 2e-3}
BITS = {"rule": "bits"}
# After an exponential, whose last bit is each library's own: where a rounding follows, few of its results show it, and
# scales that are not rounded show it themselves.
EXP = {"rule": "few", "fraction": 2e-5}
EXP_SCALES = {"rule": "close", "rtol": 1e-6, "atol": 0.0, "fraction": 0.0}
# Four products in two orders, where what is left of them may be small.
FOUR_PRODUCTS = {"rule": "calc_diff", "limit": 1e-9}
# Ten times that, each layer from the one before.
MANY_LAYERS = {"rule": "calc_diff", "limit": 1e-7}


def close(rtol, atol=0.0, fraction=0.0):
    return {"rule": "close", "rtol": rtol, "atol": atol, "fraction": fraction}


def alike(limit):
    return {"rule": "calc_diff", "limit": limit}


def flags(layout):
    """Of the scales: row_fp32 (as computed), row_fp32_round (powers of two), col_ue8m0 (packed exponents in columns)."""
    return {"use_tma_aligned_col_major_sf": layout == "col_ue8m0", "round_sf": layout != "row_fp32",
            "use_packed_ue8m0": layout == "col_ue8m0"}


def scales_in(layout):
    """(dtype, strides) of scales that are read."""
    return ("ue8m0x4", {"x_sf": "column"}) if layout == "col_ue8m0" else ("f32", {})


def matrix(p):
    return {"num_tokens": p["n"], "hidden_size": p["H"]}


def exp_scales(layout):
    """The rule for scales after an exponential: powers of two move less often than a last bit does."""
    return EXP if layout["round_sf"] else EXP_SCALES


def fitting_post_mix(post_mult_value):
    """For mhc.pre_split_mixes_backward: post_mix as the forward pass would have left it (either side may read it or
    compute it again)."""
    def prepare(fields):
        import torch
        columns = slice(fields["post_mix"].shape[1], 2 * fields["post_mix"].shape[1])
        logits = fields["x"][:, columns] * fields["scale"][1] + fields["base"][columns]
        fields["post_mix"].copy_(torch.sigmoid(logits) * post_mult_value)
    return prepare


def streams(p):
    return {"num_tokens": p["n"], "mhc_mult": p["m"], "hidden_size": p["H"]}


def flat(tensor):
    """The two dimensions of a mixing matrix as one."""
    return tensor.reshape(tensor.shape[0], -1)
