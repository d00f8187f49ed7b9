"""TileKernels of April 2026 (1.0.0, from source, on tilelang 0.1.9), called as its own benchmarks call it; its
hyper-connections, which it does not benchmark, by the kernels that its modelling layers launch.

Tables of tokens and experts are drawn as cases.py draws them (every other slot of a token is here with the chance 1 /
ranks), so a point's number of rows is close to that of the peer's own run, not the same."""

from points import (BITS, EXP, FORMATS, FOUR_PRODUCTS, MANY_LAYERS, ROUNDED, Deferred, Grid, alike, close, exp_scales,
                    fitting_post_mix, flags, flat, problem, scales_in, streams)

NORM_EPS, PRE_EPS, SINKHORN_EPS, POST_MULT, REPEAT = 1e-6, 1e-6, 1e-6, 2.0, 10
CLAMP, GATE_EPS, SCALING = 1e-6, 1e-6, 1.5

CUBLAS = "a product of cuBLAS: the gemm grid"
grid = Grid("tilekernels_v1", {
    "copy": "a probe of the copy's speed, not the peer",
    **{f"cublas_{kind}": CUBLAS for kind in ("bf16", "fp8", "tf32")},
})

RANKS = "num_ep_ranks"


def layout(p, prefix=""):
    return {name: p[prefix + name] for name in ("use_tma_aligned_col_major_sf", "round_sf", "use_packed_ue8m0")}


def scales_of(p, prefix=""):
    return scales_in("col_ue8m0" if p[prefix + "use_packed_ue8m0"] else "row_fp32")


def last_word(p, groups):
    """For rules of packed scales whose last word is not full: the peer leaves the rest of it as it was."""
    rest = groups % 4
    return {"last_word": (1 << 8 * rest) - 1} if p["use_packed_ue8m0"] and rest else {}


def scale_bits(p, groups):
    return {**BITS, **last_word(p, groups)}


def tokens(p):
    return {"num_tokens": p["num_tokens"], "hidden_size": p["hidden"]}


def routed(p, alignment):
    return {"num_experts": p["num_experts"], "num_ep_ranks": p[RANKS], "alignment": alignment}


# --- engram -------------------------------------------------------------------------------------------------------

def engram_streams(p):
    return {"num_tokens": p["num_tokens"], "mhc_mult": p["hc"], "hidden_size": p["hidden"]}


@grid.map("fused_weight")
def fused_weight(kernel, p):
    def call(k, t):
        return {"weight_fused": k.engram.fused_weight(t("weight_hidden"), t("weight_embed"))}
    return problem("engram.fused_weight", {"mhc_mult": p["hc"], "hidden_size": p["hidden"]}, {"weight_fused": BITS}, call)


@grid.map("engram_gate_fwd")
def engram_gate_fwd(kernel, p):
    saved = ["dot", "gate_score", "rstd_x", "rstd_k"] if p["save"] else []

    def call(k, t):
        out, *kept = k.engram.engram_gate_fwd(t("hidden_states"), t("k"), t("v"), t("weight_fused"), GATE_EPS, CLAMP,
                                              save_for_backward=p["save"])
        return {"out": out, **dict(zip(saved, kept))}
    return problem("engram.gate", engram_streams(p),
                   {"out": alike(1e-7), "dot": alike(1e-9), "gate_score": alike(1e-9), "rstd_x": close(4e-6),
                    "rstd_k": close(4e-6)}, call, tensors={"k": "", "v": "", **{name: "" for name in saved}},
                   attributes={"clamp_value": CLAMP, "eps": GATE_EPS, "save_for_backward": p["save"]})


@grid.map("engram_gate_bwd")
def engram_gate_bwd(kernel, p):
    def call(k, t):
        x, keys, values, partial = k.engram.engram_gate_bwd(
            t("out_grad"), t("hidden_states"), t("k"), t("v"), t("weight_fused"), t("dot"), t("gate_score"), t("rstd_x"),
            t("rstd_k"), CLAMP)
        return {"hidden_states_grad": x, "k_grad": keys, "v_grad": values,
                "weight_fused_grad": Deferred(lambda: partial.sum(0))}
    return problem("engram.gate_backward", engram_streams(p),
                   {"hidden_states_grad": alike(1e-6), "k_grad": alike(1e-6), "v_grad": alike(1e-6),
                    "weight_fused_grad": alike(1e-8)}, call, tensors={"k": "", "v": "", "k_grad": "", "v_grad": ""},
                   attributes={"clamp_value": CLAMP},
                   data={"gate_score": "uniform", "rstd_x": "positive", "rstd_k": "positive"},
                   note="Portile sums weight_fused_grad, the peer leaves a partial sum per SM")


@grid.map("grad_w_reduce")
def grad_w_reduce(kernel, p):
    def call(k, t):
        k.engram.grad_w_reduce(t("weight_fused_grad_partial"), t("weight_hidden"), t("weight_embed"),
                               t("weight_hidden_grad"), t("weight_embed_grad"))
        return {name: t(name) for name in ("weight_hidden_grad", "weight_embed_grad")}
    return problem("engram.grad_w_reduce", {"num_partials": 132, "mhc_mult": 4, "hidden_size": p["hidden"]},
                   {"weight_hidden_grad": alike(1e-9), "weight_embed_grad": alike(1e-9)}, call,
                   attributes={"accumulate": True})


@grid.map("engram_hash")
def engram_hash(kernel, p):
    def call(k, t):
        return {"out": k.engram.engram_hash(t("ngram_token_ids"), t("multipliers"), t("vocab_sizes"), t("offsets"))}
    return problem("engram.hash",
                   {"num_tokens": p["num_tokens"], "max_ngram_size": p["ngram"], "num_ngram_layers": p["layers"],
                    "num_embed_table_per_ngram": p["tables"]}, {"out": BITS}, call,
                   data={"ngram_token_ids": "integer 0 100000", "multipliers": "integer 0 100000",
                         "vocab_sizes": "integer 100000 1000000", "offsets": "integer 0 1000000"})


# --- mixture of experts -------------------------------------------------------------------------------------------

@grid.map("topk_gate")
def topk_gate(kernel, p):
    def call(k, t):
        return {"topk_idx": k.moe.topk_gate(t("scores"), p["num_topk"])}
    return problem("moe.topk_gate", {"num_tokens": p["num_tokens"], "num_experts": p["num_experts"]},
                   {"topk_idx": BITS}, call, attributes={"num_topk": p["num_topk"]})


@grid.map("topk_sum_and_topk_group_idx")
def topk_sum_and_topk_group_idx(kernel, p):
    best, kept = p["num_group_sum_topk"], p["num_topk_groups"]

    def call(k, t):
        return {"topk_group_idx": k.moe.topk_sum_and_topk_group_idx(t("scores"), best, kept)}
    return problem("moe.topk_sum_and_topk_group_idx",
                   {"num_tokens": p["num_tokens"], "num_groups": p["num_groups"],
                    "group_size": p["num_experts"] // p["num_groups"]}, {"topk_group_idx": BITS}, call,
                   attributes={"num_topk_sum": best, "num_topk_groups": kept})


@grid.map("top2_sum_gate")
def top2_sum_gate(kernel, p):
    experts, shared, topk = p["num_routed_experts"], p["num_shared_experts"], p["num_topk"]
    use_shared = topk % shared == 0 and experts % (topk // shared) == 0
    ranks = {"ep_rank": 0, "num_ep_ranks": 4, "tp_rank": 1, "num_tp_ranks": 2}

    def call(k, t):
        ids, weights = k.moe.top2_sum_gate(
            t("logits"), t("bias"), topk, p["num_topk_groups"], p["num_groups"], use_shared, shared, SCALING,
            *ranks.values(), p["scoring_func"], mask=t("mask"), to_physical_map=t("to_physical_map"),
            logical_count=t("logical_count"), unmapped_topk_idx=t("unmapped_topk_idx"))
        return {"topk_idx": ids, "topk_weights": weights, "unmapped_topk_idx": t("unmapped_topk_idx")}
    mapped = use_shared  # the peer's benchmark has the map, of 32 more experts, with the shared ones only
    # Scores that differ in their last bit only may change places, and their weights with them.
    ids = {"rule": "few", "fraction": 0.01}
    return problem("moe.top2_sum_gate", {"num_tokens": 36, "num_experts": experts, **({"map_columns": 33} if mapped else {})},
                   {"topk_idx": ids, "unmapped_topk_idx": ids, "topk_weights": close(2e-5, 2e-8, 0.01)}, call,
                   tensors={"mask": "", "unmapped_topk_idx": "",
                            **({"to_physical_map": "", "logical_count": ""} if mapped else {})},
                   data={"mask": "first 32", "to_physical_map": f"integer 0 {experts + shared}",
                         "logical_count": "integer 1 2"},
                   attributes={"num_topk": topk, "num_topk_groups": p["num_topk_groups"], "num_groups": p["num_groups"],
                               "use_shared_as_routed": use_shared, "num_shared_experts": shared,
                               "routed_scaling_factor": SCALING, **ranks, "scoring_func": p["scoring_func"]})


@grid.map("aux_fi")
def aux_fi(kernel, p):
    def call(k, t):
        return {"out": k.moe.aux_fi(t("topk_idx"), p["num_experts"], p["num_aux_topk"])}
    return problem("moe.aux_fi", {"num_tokens": p["num_tokens"], "num_topk": p["num_topk"]}, {"out": alike(1e-12)}, call,
                   attributes={"num_experts": p["num_experts"], "num_aux_topk": p["num_aux_topk"]},
                   routing=routed(p, 16))


@grid.map("group_count")
def group_count(kernel, p):
    def call(k, t):
        return {"out": k.moe.group_count(t("group_idx"), p["num_experts"])}
    return problem("moe.group_count", {"num_tokens": p["num_tokens"], "num_topk": p["num_topk"]}, {"out": BITS}, call,
                   attributes={"num_groups": p["num_experts"]}, data={"group_idx": f"integer -1 {p['num_experts']}"})


@grid.map("inplace_unique_group_indices")
def inplace_unique_group_indices(kernel, p):
    def call(k, t):
        k.moe.inplace_unique_group_indices(t("group_idx"), p["num_groups"])
        return {"group_idx": t("group_idx")}
    return problem("moe.inplace_unique_group_indices", {"num_tokens": p["num_tokens"], "num_topk": p["num_topk"]},
                   {"group_idx": BITS}, call, attributes={"num_groups": p["num_groups"]},
                   data={"group_idx": f"integer -1 {p['num_groups']}"},
                   note="from the second launch on the indices are unique already, on both sides")


@grid.map("mask_indices_by_tp")
def mask_indices_by_tp(kernel, p):
    experts = p["num_experts"] * p[RANKS]

    def call(k, t):
        return {"out": k.moe.mask_indices_by_tp(t("indices"), experts, p[RANKS], p["tp_rank"], p["num_tp_ranks"])}
    return problem("moe.mask_indices_by_tp", {"num_tokens": p["num_tokens"], "num_topk": p["num_topk"]}, {"out": BITS},
                   call, tensors={"indices": "i64", "out": "i64"}, data={"indices": f"integer -1 {p['num_experts']}"},
                   attributes={"num_experts": experts, "num_ep_ranks": p[RANKS], "tp_rank": p["tp_rank"],
                               "num_tp_ranks": p["num_tp_ranks"]})


@grid.map("normalize_weight")
def normalize_weight(kernel, p):
    def call(k, t):
        denominator, normalized = k.moe.normalize_weight(t("topk_weights"))
        return {"denominator": denominator, "normalized": normalized}
    return problem("moe.normalize_weight", {"num_tokens": p["num_tokens"], "num_topk": p["num_topk"]},
                   {"denominator": BITS, "normalized": BITS}, call, attributes={"sum_order": "sequential"},
                   data={"topk_weights": "uniform"})


@grid.map("get_fused_mapping")
def get_fused_mapping(kernel, p):
    names = ("pos_to_expert", "pos_to_token", "pos_to_token_topk", "token_topk_to_pos", "expert_start", "expert_end",
             "num_tokens_per_expert")

    def call(k, t):
        return dict(zip(names, k.moe.get_fused_mapping(t("topk_idx"), p["num_experts"], 0, p["alignment"])))
    return problem("moe.get_fused_mapping", {"num_tokens": p["num_tokens"], "num_topk": p["num_topk"]},
                   {name: BITS for name in names}, call,
                   attributes={"num_experts": p["num_experts"], "alignment": p["alignment"]},
                   routing=routed(p, p["alignment"]),
                   note="the peer also waits for the device and copies the counts to the host")


@grid.map("expand_to_fused")
def expand_to_fused(kernel, p):
    def call(k, t):
        return {"out": k.moe.expand_to_fused(t("x"), t("token_topk_to_pos"), t("pos_to_expert"))}
    return problem("moe.expand_to_fused", {**tokens(p), "num_topk": p["num_topk"]}, {"out": BITS}, call,
                   tensors={"x": "bf16", "out": "bf16"}, routing=routed(p, 16))


@grid.map("expand_to_fused_with_sf")
def expand_to_fused_with_sf(kernel, p):
    columns = p["use_tma_aligned_col_major_sf"]

    def call(k, t):
        out, sf = k.moe.expand_to_fused_with_sf((t("x"), t("x_sf")), p["num_per_channels"], t("token_topk_to_pos"),
                                                t("pos_to_expert"), columns)
        return {"out": out, "out_sf": sf}
    dtype = "ue8m0x4" if p["use_packed_ue8m0"] else "f32"
    return problem("moe.expand_to_fused_with_sf", {**tokens(p), "num_topk": p["num_topk"]}, {"out": BITS, "out_sf": BITS},
                   call, tensors={"x": "e4m3", "out": "e4m3", "x_sf": dtype, "out_sf": dtype}, routing=routed(p, 16),
                   attributes={"num_per_channels": p["num_per_channels"], "use_tma_aligned_col_major_sf": columns})


@grid.map("reduce_fused")
def reduce_fused(kernel, p):
    quantised = p["out_dtype"] == "e4m3"

    def call(k, t):
        x = (t("x"), t("x_sf")) if p["with_sf"] else t("x")
        return {"out": k.moe.reduce_fused(x, t("topk_weights"), t("token_topk_to_pos"), "e4m3" if quantised else "", t("sf"))}
    read = 4 if p["in_dtype"] == "fp32" else 2
    written = {"fp32": 4, "bf16": 2, "e4m3": 1}[p["out_dtype"]]
    moved = f"num_live * hidden_size * {read} + num_tokens * hidden_size * {written} + 4 * num_tokens * num_topk"
    optional = {"x_sf": p["with_sf"], "topk_weights": p["with_weights"], "sf": quantised}
    moved += " + 4 * num_live" * p["with_sf"] + " + 4 * num_tokens * num_topk" * p["with_weights"]
    return problem("moe.reduce_fused", {**tokens(p), "num_topk": p["num_topk"]}, {"out": BITS}, call,
                   tensors={"x": FORMATS[p["in_dtype"]], "out": FORMATS[p["out_dtype"]],
                            **{name: "" for name, there in optional.items() if there}},
                   routing=routed(p, 1), bytes=moved)


# --- casts --------------------------------------------------------------------------------------------------------

@grid.map("per_token_cast")
def per_token_cast(kernel, p):
    block = p["x_block_size"]

    def call(k, t):
        x = (t("x"), t("x_sf")) if block else t("x")
        out, sf = k.quant.per_token_cast(x, p["fmt"], p["num_per_channels"], tuple(block) if block else None, **layout(p))
        return {"out": out, "out_sf": sf}
    attributes = {"num_per_channels": p["num_per_channels"], "fmt": p["fmt"], **layout(p)}
    if block:
        attributes |= {"x_block_rows": block[0], "x_block_cols": block[1]}
    groups = -(-p["hidden"] // p["num_per_channels"])
    return problem("quant.per_token_cast", tokens(p), {"out": BITS, "out_sf": scale_bits(p, groups)}, call,
                   tensors={"x": FORMATS[p["in_dtype"]], **({"x_sf": "f32"} if block else {})}, attributes=attributes)


@grid.map("per_token_cast_to_e5m6")
def per_token_cast_to_e5m6(kernel, p):
    def call(k, t):
        out, sf = k.quant.per_token_cast(t("x"), "e5m6", p["num_per_channels"], None, **layout(p))
        return {"out": out, "out_sf": sf}
    return problem("quant.per_token_cast_to_e5m6", tokens(p), {"out": BITS, "out_sf": scale_bits(p, 1)}, call,
                   tensors={"x": FORMATS[p["in_dtype"]]},
                   attributes={"num_per_channels": "=hidden_size", **layout(p)})


@grid.map("cast_back_per_token", "cast_back", "cast_back_e5m6")
def cast_back(kernel, p):
    block = (p.get("num_per_tokens", 1), p["num_per_channels"])
    e5m6 = kernel == "cast_back_e5m6"
    packed = p.get("use_packed_ue8m0", False)

    def call(k, t):
        return {"out": k.quant.cast_back((t("x"), t("x_sf")), p["out_dtype"], block, "e5m6" if e5m6 else None)}
    dtype, strides = scales_in("col_ue8m0" if packed else "row_fp32")
    attributes = {"x_block_rows": block[0], "x_block_cols": "=hidden_size" if block[1] == p["hidden"] else block[1]}
    if not e5m6:
        attributes |= {"use_packed_ue8m0": packed, "use_tma_aligned_col_major_sf": packed}
    return problem("quant.cast_back_e5m6" if e5m6 else "quant.cast_back", tokens(p), {"out": BITS}, call, strides=strides,
                   tensors={"x": "e5m6x8" if e5m6 else FORMATS[p["fmt"]], "x_sf": dtype, "out": FORMATS[p["out_dtype"]]},
                   attributes=attributes)


@grid.map("per_block_cast")
def per_block_cast(kernel, p):
    block = tuple(p["block_size"])

    def call(k, t):
        out, sf = k.quant.per_block_cast(t("x"), p["fmt"], block, **layout(p))
        return {"out": out, "out_sf": sf}
    return problem("quant.per_block_cast", tokens(p),
                   {"out": BITS, "out_sf": scale_bits(p, -(-p["hidden"] // block[1]))}, call,
                   tensors={"x": FORMATS[p["in_dtype"]]},
                   attributes={"block_rows": block[0], "block_cols": block[1], "fmt": p["fmt"], **layout(p)})


@grid.map("per_block_cast_lossless")
def per_block_cast_lossless(kernel, p):
    read, written = tuple(p["in_sf_block"]), tuple(p["out_sf_block"])
    dtype, strides = scales_of(p, "in_")

    def call(k, t):
        out, sf = k.quant.per_block_cast_lossless((t("x"), t("x_sf")), "e4m3", read, written, **layout(p, "out_"))
        return {"out": out, "out_sf": sf}
    return problem("quant.per_block_cast_lossless", tokens(p), {"out": BITS, "out_sf": BITS}, call,
                   tensors={"x_sf": dtype}, strides=strides,
                   attributes={"x_block_rows": read[0], "x_block_cols": read[1], "out_block_rows": written[0],
                               "out_block_cols": written[1], **{k: p["out_" + k] for k in flags("row_fp32")}})


@grid.map("per_channel_cast", "per_channel_cast_and_transpose")
def per_channel_cast(kernel, p):
    rows = p["num_per_channels" if kernel.endswith("transpose") else "num_per_tokens"]

    def call(k, t):
        out, sf = getattr(k.quant, kernel)(t("x"), "e4m3", rows, p["round_sf"])
        return {"out": out, "out_sf": sf}
    return problem(f"quant.{kernel}", tokens(p), {"out": BITS, "out_sf": BITS}, call, tensors={"x": FORMATS[p["dtype"]]},
                   attributes={"num_per_tokens": rows, "round_sf": p["round_sf"]})


@grid.map("per_channel_cast_fused")
def per_channel_cast_fused(kernel, p):
    quantised, gathers = p["is_fused_cast_back"], p["num_topk"] > 0

    def call(k, t):
        x = (t("x"), t("x_sf")) if quantised else t("x")
        out, sf = k.quant.per_channel_cast_fused(
            x, "e4m3", num_per_tokens=p["num_per_tokens"], round_sf=p["round_sf"],
            num_per_channels=p["num_per_channels"] if quantised else None, pos_to_token=t("pos_to_token"))
        return {"out": out, "out_sf": sf}
    read = "hidden_size + 4 * hidden_size / 128" if quantised else "2 * hidden_size"
    dims = {**tokens(p), "num_topk": p["num_topk"]} if gathers else {**tokens(p), "num_expanded_tokens": "=num_tokens"}
    return problem("quant.per_channel_cast_fused", dims, {"out": BITS, "out_sf": BITS}, call,
                   tensors={"x": "e4m3" if quantised else "bf16", **({"x_sf": "f32"} if quantised else {}),
                            **({"pos_to_token": ""} if gathers else {})},
                   attributes={"num_per_tokens": p["num_per_tokens"], "round_sf": p["round_sf"],
                               **({"num_per_channels": p["num_per_channels"]} if quantised else {})},
                   bytes=f"num_expanded_tokens * ({read} + hidden_size + {4 * gathers}) + "
                   f"4 * num_expanded_tokens / {p['num_per_tokens']} * hidden_size",
                   **({"routing": routed(p, 128)} if gathers else {}))


# --- SwiGLU -------------------------------------------------------------------------------------------------------

@grid.map("swiglu_forward_and_per_token_cast")
def swiglu_forward_and_per_token_cast(kernel, p):
    def call(k, t):
        out, sf = k.quant.swiglu_forward_and_per_token_cast(
            t("x"), "e4m3", p["num_per_channels"], pos_to_expert=t("pos_to_expert"),
            swiglu_clamp_value=p["swiglu_clamp_value"], **layout(p))
        return {"out": out, "out_sf": sf}
    groups = -(-p["hidden"] // p["num_per_channels"])
    clamp = {} if p["swiglu_clamp_value"] is None else {"clamp_value": p["swiglu_clamp_value"]}
    return problem("quant.swiglu_forward_and_per_token_cast", {**tokens(p), "num_topk": p["num_topk"]},
                   {"out": EXP, "out_sf": {**exp_scales(layout(p)), **last_word(p, groups)}}, call, tensors={"x": "bf16", "pos_to_expert": ""},
                   attributes={"num_per_channels": p["num_per_channels"], **layout(p), **clamp}, routing=routed(p, 16),
                   valid_rows="pos_to_expert")


@grid.map("swiglu_forward_and_per_channel_cast_and_transpose")
def swiglu_forward_and_per_channel_cast_and_transpose(kernel, p):
    def call(k, t):
        out, sf = k.quant.swiglu_forward_and_per_channel_cast_and_transpose(
            t("x"), "e4m3", p["num_per_tokens"], p["round_sf"], p["without_transpose"], p["swiglu_clamp_value"])
        return {"out": out, "out_sf": sf}
    clamp = {} if p["swiglu_clamp_value"] is None else {"clamp_value": p["swiglu_clamp_value"]}
    return problem("quant.swiglu_forward_and_per_channel_cast_and_transpose", tokens(p), {"out": EXP, "out_sf": exp_scales(p)},
                   call, tensors={"x": "bf16"},
                   attributes={"num_per_tokens": p["num_per_tokens"], "round_sf": p["round_sf"],
                               "without_transpose": p["without_transpose"], **clamp})


@grid.map("swiglu_backward_and_per_token_cast")
def swiglu_backward_and_per_token_cast(kernel, p):
    clamp = p["swiglu_clamp_value"]

    def call(k, t):
        act, (codes, sf), x_grad, weights_grad = k.quant.swiglu_backward_and_per_token_cast(
            (t("x"), t("x_sf")), t("out_grad"), t("topk_weights"), t("pos_to_token_topk"), t("token_topk_to_pos"),
            num_per_channels=p["num_per_channels"], round_sf=p["round_sf"], swiglu_clamp_value=clamp)
        return {"act_out": act, "x_grad_fp8": codes, "x_grad_fp8_sf": sf, "x_grad": x_grad, "topk_weights_grad": weights_grad}
    return problem("quant.swiglu_backward_and_per_token_cast", {**tokens(p), "num_topk": p["num_topk"]},
                   {"act_out": EXP, "x_grad_fp8": EXP, "x_grad_fp8_sf": exp_scales(p), "x_grad": EXP,
                    "topk_weights_grad": alike(1e-8)}, call,
                   tensors={"x_sf": "f32", "out_grad": "bf16", "act_out": "",
                            "topk_weights": "", "topk_weights_grad": "", "pos_to_token_topk": "", "token_topk_to_pos": ""},
                   data={"x_sf": "uniform"}, routing=routed(p, p["num_per_channels"]),
                   attributes={"num_per_channels": p["num_per_channels"], "round_sf": p["round_sf"],
                               **({} if clamp is None else {"clamp_value": clamp})},
                   valid_rows="pos_to_token_topk")


# --- transposes ---------------------------------------------------------------------------------------------------

@grid.map("transpose")
def transpose(kernel, p):
    def call(k, t):
        return {"out": k.transpose.transpose(t("x"))}
    return problem("transpose.transpose", {"num_rows": p["num_tokens"], "num_cols": p["hidden"]}, {"out": BITS}, call,
                   tensors={"x": FORMATS[p["dtype"]]}, strides={"x": "half of wider rows"})


@grid.map("batched_transpose")
def batched_transpose(kernel, p):
    def call(k, t):
        return {"out": k.transpose.batched_transpose(t("x"))}
    return problem("transpose.batched",
                   {"num_batches": p["num_experts"], "num_rows": p["num_tokens"], "num_cols": p["hidden"]}, {"out": BITS},
                   call, tensors={"x": FORMATS[p["dtype"]]})


# --- hyper-connections --------------------------------------------------------------------------------------------

MIX = close(2e-5, 4e-6)
MULT = 4


def four(p):
    return streams({"n": p["n"], "m": MULT, "H": p["H"]})


def mixes(p):
    return {"num_tokens": p["n"], "mhc_mult": MULT}


@grid.map("mhc_multilayer_recompute")
def mhc_multilayer_recompute(kernel, p):
    def call(k, t):
        k.mhc.multilayer_recompute_kernel.mhc_multilayer_recompute(
            t("initial_residual"), t("pre_mix"), t("layer_output"), t("post_mix"), t("comb_mix"), t("layer_input"),
            t("residual"))
        return {"layer_input": t("layer_input"), "residual": t("residual")}
    return problem("mhc.multilayer_recompute",
                   streams({"n": p["bs"] * p["seq"], "m": p["mhc_mult"], "H": p["hidden"]}),
                   {"layer_input": MANY_LAYERS, "residual": MANY_LAYERS}, call,
                   lists={"pre_mix": p["num_layers"], "layer_input": p["num_layers"],
                          **{name: p["num_post"] for name in ("layer_output", "post_mix", "comb_mix", "residual")}})


@grid.map("mhc_pre_big_fuse")
def mhc_pre_big_fuse(kernel, p):
    def call(k, t):
        post, comb, layer_input = k.modeling.mhc.ops.pre_big_fuse.mhc_pre_big_fuse(
            t("residual"), t("fn"), t("scale"), t("base"), NORM_EPS, PRE_EPS, SINKHORN_EPS, POST_MULT, REPEAT)
        return {"post_mix": post, "comb_mix": comb, "layer_input": layer_input}
    return problem("mhc.pre_big_fuse", four(p),
                   {"post_mix": alike(1e-6), "comb_mix": alike(1e-5), "layer_input": alike(1e-5)}, call, tensors={"fn": ""},
                   attributes={"norm_eps": NORM_EPS, "pre_eps": PRE_EPS, "sinkhorn_eps": SINKHORN_EPS,
                               "post_mult_value": POST_MULT, "sinkhorn_repeat": REPEAT,
                               **({"fn_splits": 16} if p["n"] <= 512 else {})})


@grid.map("norm_fn_fwd")
def norm_fn_fwd(kernel, p):
    def call(k, t):
        return {"out": k.modeling.mhc.ops.norm_fn.mhc_pre_norm_fn(t("residual"), t("fn"), None, NORM_EPS)}
    return problem("mhc.pre_norm_fn", four(p), {"out": alike(1e-6)}, call,
                   attributes={"norm_eps": NORM_EPS, **({"n_splits": 16} if p["n"] <= 512 else {})})


@grid.map("norm_fn_bwd(with zeros)")
def norm_fn_bwd(kernel, p):
    def call(k, t):
        kernels = k.mhc.norm_fn_kernel
        rows, columns = t("fn").shape
        fn = t.once("fn rounded", lambda: kernels.round_to_tf32(t("fn")))  # kept by the peer's forward pass
        x = t("residual").reshape(-1, columns)
        out_mul, sqrsum = t("out_mul").reshape(-1, 1, rows), t("sqrsum").reshape(-1, 1)
        mul_grad = t.once("mul_grad", lambda: t.new(out_mul.shape, "f32"))
        sqrsum_grad = t.once("sqrsum_grad", lambda: t.new(sqrsum.shape, "f32"))
        kernels._mhc_pre_norm_fn_bwd_norm(rows, 1, columns, NORM_EPS)(t("out_grad"), out_mul, sqrsum, mul_grad, sqrsum_grad)
        x_grad = t.new(x.shape, "bf16")  # zeros: the kernel adds
        rounded = kernels.round_to_tf32(mul_grad)
        kernels._mhc_pre_norm_fn_bwd_mul(rows, 1, columns)(rounded, sqrsum_grad, x, fn, x_grad, t("fn_grad"))
        return {"residual_grad": x_grad, "fn_grad": t("fn_grad")}
    return problem("mhc.pre_norm_fn_backward", four(p), {"residual_grad": alike(1e-5), "fn_grad": alike(1e-6)}, call,
                   attributes={"norm_eps": NORM_EPS, "accumulate": False, "accumulate_residual": False},
                   data={"sqrsum": "integer 20000 30000"})


@grid.map("split_mixes_fwd")
def split_mixes_fwd(kernel, p):
    def call(k, t):
        run = k.mhc.pre_split_mixes_kernel._mhc_pre_split_mixes_fwd(MULT, POST_MULT, PRE_EPS, token_block_size=32)
        run(t("x"), t("scale"), t("base"), t("pre_mix"), t("post_mix"), flat(t("comb_mix")))
        return {name: t(name) for name in ("pre_mix", "post_mix", "comb_mix")}
    return problem("mhc.pre_split_mixes", mixes(p), {"pre_mix": MIX, "post_mix": MIX, "comb_mix": MIX}, call,
                   attributes={"post_mult_value": POST_MULT, "pre_eps": PRE_EPS})


@grid.map("split_mixes_bwd")
def split_mixes_bwd(kernel, p):
    def call(k, t):
        sms = k.config.get_num_sms()
        scale = t.once("scale partial", lambda: t.new((sms, 3), "f32"))
        base = t.once("base partial", lambda: t.new((sms, MULT * (MULT + 2)), "f32"))
        run = k.mhc.pre_split_mixes_kernel._mhc_pre_split_mixes_bwd(MULT, POST_MULT, token_block_size=32, num_sms=sms)
        run(t("pre_mix_grad"), t("post_mix_grad"), flat(t("comb_mix_grad")), t("x"), t("post_mix"), t("scale"), t("base"),
            t("x_grad"), scale, base)
        return {"x_grad": t("x_grad"), "scale_grad": scale.sum(0), "base_grad": base.sum(0)}
    return problem("mhc.pre_split_mixes_backward", mixes(p),
                   {"x_grad": close(2e-5, 4e-5), "scale_grad": alike(1e-8), "base_grad": alike(1e-8)}, call,
                   tensors={"post_mix": ""}, attributes={"post_mult_value": POST_MULT}, prepare=fitting_post_mix(POST_MULT))


@grid.map("sinkhorn_fwd")
def sinkhorn_fwd(kernel, p):
    def call(k, t):
        k.mhc.sinkhorn_kernel._mhc_sinkhorn_fwd(MULT, 1, REPEAT, SINKHORN_EPS)(t("x"), t("out"))
        return {"out": t("out")}
    return problem("mhc.sinkhorn", mixes(p), {"out": close(5e-6, 2e-5)}, call,
                   attributes={"repeat": REPEAT, "eps": SINKHORN_EPS})


@grid.map("sinkhorn_bwd")
def sinkhorn_bwd(kernel, p):
    def call(k, t):
        k.mhc.sinkhorn_kernel._mhc_sinkhorn_bwd(MULT, 32, REPEAT, SINKHORN_EPS)(t("out_grad"), t("x"), t("x_grad"))
        return {"x_grad": t("x_grad")}
    return problem("mhc.sinkhorn_backward", mixes(p), {"x_grad": close(2e-4, 2e-5)}, call,
                   attributes={"repeat": REPEAT, "eps": SINKHORN_EPS})


@grid.map("pre_apply_mix_fwd")
def pre_apply_mix_fwd(kernel, p):
    def call(k, t):
        k.mhc.pre_apply_mix_kernel._mhc_pre_apply_mix_fwd(MULT, t("x").shape[-1])(t("x"), t("mix"), t("out"))
        return {"out": t("out")}
    return problem("mhc.pre_apply_mix", four(p), {"out": ROUNDED}, call)


@grid.map("pre_apply_mix_bwd")
def pre_apply_mix_bwd(kernel, p):
    def call(k, t):
        run = k.mhc.pre_apply_mix_kernel._mhc_pre_apply_mix_bwd(MULT, t("x").shape[-1])
        return {"mix_grad": run(t("out_grad"), t("x"), t("mix"), t("x_grad")), "x_grad": t("x_grad")}
    return problem("mhc.pre_apply_mix_backward", four(p), {"mix_grad": alike(1e-9), "x_grad": ROUNDED}, call,
                   tensors={"x_grad": ""}, attributes={"accumulate": True})


@grid.map("post_fwd")
def post_fwd(kernel, p):
    def call(k, t):
        return {"out": k.mhc.post_kernel.mhc_post_fwd(t("x")[None], t("residual")[None], t("post_mix")[None, ..., None],
                                                      t("comb_mix")[None])}
    return problem("mhc.post", four(p), {"out": FOUR_PRODUCTS}, call)


@grid.map("post_bwd")
def post_bwd(kernel, p):
    def call(k, t):
        x, residual, post, comb = k.mhc.post_kernel.mhc_post_bwd(
            t("x")[None], t("residual")[None], t("post_mix")[None, ..., None], t("comb_mix")[None], t("out_grad")[None],
            fuse_grad_acc=False)
        return {"x_grad": x, "residual_grad": residual, "post_mix_grad": post, "comb_mix_grad": comb}
    return problem("mhc.post_backward", four(p),
                   {"x_grad": ROUNDED, "residual_grad": ROUNDED, "post_mix_grad": alike(1e-9), "comb_mix_grad": alike(1e-9)},
                   call, tensors={"residual_grad": ""})


@grid.map("expand_fwd")
def expand_fwd(kernel, p):
    def call(k, t):
        k.mhc.expand_kernel.expand_to_mhc_fwd_tl(t("x").shape[-1], MULT)(t("x"), t("out"))
        return {"out": t("out")}
    return problem("mhc.expand", {"num_tokens": p["n"], "hidden_size": p["H"]}, {"out": BITS}, call,
                   attributes={"mhc_mult": MULT}, kind="write")


@grid.map("expand_bwd")
def expand_bwd(kernel, p):
    def call(k, t):
        k.mhc.expand_kernel.expand_to_mhc_bwd_tl(t("x_grad").shape[-1], MULT)(t("out_grad"), t("x_grad"))
        return {"x_grad": t("x_grad")}
    return problem("mhc.expand_backward", four(p), {"x_grad": ROUNDED}, call)
