"""Products beside cuBLAS, through torch: the shapes of large models' layers at few and at many rows.

Scales of the e4m3 points are ones, so that a block-scaled product and cuBLAS's per-tensor one are the same product; the
work is that of any scales. A grouped product stands against one dense product of as many operations: its own result is
checked against a product per expert."""

from points import Deferred, Grid, alike, problem

ROWS = (64, 128, 512, 4096, 8192)
LAYERS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048), (8192, 8192))
EXPERT_LAYERS = ((4096, 7168), (7168, 2048))
EXPERTS = (8, 32, 256)
ROUTED_ROWS = 8192 * 8

# {kind: (types of a and b, of out, attributes, the largest calc_diff)}
KINDS = {
    "bf16": ("bf16", "bf16", {}, 1e-5),
    "tf32 truncate": ("f32", "f32", {"tf32_rounding": "truncate"}, 1e-6),
    "tf32 nearest": ("f32", "f32", {"tf32_rounding": "nearest"}, 1e-5),
    "e4m3": ("e4m3", "bf16", {}, 1e-4),  # cuBLAS adds fp8 products with fewer bits than fp32 has
}


def points():
    for kind in KINDS:
        for n, k in LAYERS:
            for m in ROWS:
                yield {"kernel": "dense", "params": {"dtype": kind, "M": m, "N": n, "K": k}}
    for experts in EXPERTS:
        for n, k in EXPERT_LAYERS:
            for loads in ("uniform", "skewed"):
                yield {"kernel": "grouped", "params": {"dtype": "bf16", "E": experts, "loads": loads, "M": ROUTED_ROWS,
                                                       "N": n, "K": k}}


grid = Grid("gemm", {}, points)


@grid.map("dense")
def dense(kernel, p):
    factors, result, attributes, limit = KINDS[p["dtype"]]
    quantised = factors == "e4m3"

    def call(torch, t):
        if quantised:
            one = t.once("one", lambda: t.new((), "f32") + 1)
            return {"out": torch._scaled_mm(t("a"), t("b").T, one, one, out_dtype=t("out").dtype)}
        return {"out": torch.mm(t("a"), t("b").T, out=t("out"))}
    scales = {"a_sf": "f32", "b_sf": "f32"} if quantised else {}
    return problem("gemm.nt", {name: p[name] for name in "MNK"}, {"out": alike(limit)}, call,
                   tensors={"a": factors, "b": factors, "out": result, **scales}, attributes=attributes,
                   data={name: "integer 1 2" for name in scales}, flop="2 * M * N * K", extra={"dtype": p["dtype"]})


@grid.map("grouped")
def grouped(kernel, p):
    def call(torch, t):
        a, b, out = t("a"), t("b"), t.once("dense", lambda: t.new((t("a").shape[0], t("b").shape[1]), "bf16"))
        torch.mm(a, b[0].T, out=out)

        def per_expert():
            result = t("out")
            for e, (start, end) in enumerate(zip(t("expert_start").tolist(), t("expert_end").tolist())):
                torch.mm(a[start:end], b[e].T, out=result[start:end])
            return result
        return {"out": Deferred(per_expert)}
    skewed = " skewed" if p["loads"] == "skewed" else ""
    return problem("gemm.grouped_nt", {name: p[name] for name in "EMNK"}, {"out": alike(1e-5)}, call,
                   tensors={"a": "bf16", "b": "bf16", "out": "bf16", "expert_start": "", "expert_end": ""},
                   data={f"expert_{end}": f"segment {end} M E{skewed}" for end in ("start", "end")},
                   flop="2 * M * N * K", extra={"dtype": p["dtype"]},
                   note="a grouped product against one dense product of as many operations")
