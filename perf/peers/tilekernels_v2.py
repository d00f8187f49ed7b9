"""TileKernels 2 (tile-kernels 2.1.0 on tilelang 0.1.15): its kernels, called as its own benchmarks call them.

Where the peer leaves part of an operation to another launch (a sum over partials), the grid's point is the peer's
launch alone and Portile's is the whole operation: `note` says so, and the ratio is then to Portile's disadvantage."""

from points import (BITS, EXP, FEW, FORMATS, FOUR_PRODUCTS, MANY_LAYERS, ROUNDED, Deferred, Grid, alike, close, exp_scales,
                    fitting_post_mix, flags, flat, matrix, problem, scales_in, streams)

NORM_EPS, PRE_EPS, SINKHORN_EPS, POST_MULT = 1e-6, 1e-6, 1e-6, 2.0
CLAMP, GATE_EPS, BETA1, STEP_EPS, SCALING = 1e-6, 1e-6, 0.95, 1e-20, 1.5

grid = Grid("tilekernels_v2", {
    "_torch_add_": "a probe of the smallest kernel: torch, not the peer",
    "_torch_copy_bf16": "a probe of the copy's speed: torch, not the peer",
})

# --- norm, RoPE ---------------------------------------------------------------------------------------------------

def norm_tensors(p, *outputs):
    wanted = {"x": FORMATS[p["dtype"]], "weight": ""}
    if p["residual"]:
        wanted |= {"residual": "", "residual_out": ""}
    return wanted | {name: "" for name in outputs}


@grid.map("norm_forward")
def norm_forward(kernel, p):
    def call(k, t):
        out, rstd, total = k.quant.norm_forward(t("x"), t("weight"), NORM_EPS, residual=t("residual"),
                                                with_rstd=p["rstd"])
        return {"out": out, **({"rstd": rstd} if p["rstd"] else {}), **({"residual_out": total} if p["residual"] else {})}
    return problem("norm.forward", {"num_tokens": p["n"], "hidden_size": p["H"]},
                   {"out": ROUNDED, "rstd": close(4e-6), "residual_out": BITS}, call,
                   tensors=norm_tensors(p, *(["rstd"] if p["rstd"] else [])),
                   attributes={"eps": NORM_EPS, "with_rstd": p["rstd"]})


@grid.map("norm_forward_and_per_token_cast")
def norm_forward_and_per_token_cast(kernel, p):
    layout = flags(p["sf"])

    def call(k, t):
        (out, sf), plain, _, total = k.quant.norm_forward_and_per_token_cast(
            t("x"), t("weight"), NORM_EPS, "e4m3", p["npc"], residual=t("residual"), with_out_bf16=p["out_bf16"], **layout)
        return {"out": out, "out_sf": sf, **({"out_bf16": plain} if p["out_bf16"] else {}),
                **({"residual_out": total} if p["residual"] else {})}
    return problem("norm.forward_and_per_token_cast", {"num_tokens": p["n"], "hidden_size": p["H"]},
                   {"out": FEW, "out_sf": FEW, "out_bf16": ROUNDED, "residual_out": BITS}, call,
                   tensors=norm_tensors(p, *(["out_bf16"] if p["out_bf16"] else [])),
                   attributes={"eps": NORM_EPS, "num_per_channels": p["npc"], "with_out_bf16": p["out_bf16"], **layout})


@grid.map("norm_backward")
def norm_backward(kernel, p):
    def call(k, t):
        x_grad, weight_grad = k.quant.norm_backward(t("out_grad"), t("x"), t("weight"), t("rstd"),
                                                    residual_out_grad=t("residual_out_grad"))
        return {"x_grad": x_grad, "weight_grad": weight_grad}
    return problem("norm.backward", {"num_tokens": p["n"], "hidden_size": p["H"]},
                   {"x_grad": alike(1e-6), "weight_grad": alike(1e-5)}, call,
                   tensors={"x": FORMATS[p["dtype"]], "out_grad": "", "weight": "", "weight_grad": "bf16",
                            **({"residual_out_grad": ""} if p["residual"] else {})},
                   attributes={"accumulate": False}, data={"rstd": "positive"})


@grid.map("apply_rotary")
def apply_rotary(kernel, p):
    def call(k, t):
        query = t("query")
        k.transform.apply_rotary(query[..., -p["R"]:], t("cos_sin_cache"), positions=t("positions"),
                                 interleaved=p["interleaved"])
        return {"query": query}
    positions = {"tensors": {"query": "bf16", "positions": "i32"}, "data": {"positions": f"integer 0 {p['n']}"}}
    moved = "4 * num_tokens * num_heads * rot_dim + 4 * num_tokens * rot_dim"
    return problem("rope.apply",
                   {"num_tokens": p["n"], "num_heads": p["heads"], "head_dim": p["head_dim"],
                    "num_positions": "=num_tokens", "rot_dim": p["R"]}, {"query": BITS}, call,
                   attributes={"rot_offset": p["head_dim"] - p["R"], "interleaved": p["interleaved"]},
                   bytes=moved + (" + 4 * num_tokens" if p["positions"] else ""),
                   **(positions if p["positions"] else {"tensors": {"query": "bf16"}}))


# --- SwiGLU -------------------------------------------------------------------------------------------------------

@grid.map("swiglu_forward_and_per_token_cast")
def swiglu_forward_and_per_token_cast(kernel, p):
    layout = flags(p["sf"])

    def call(k, t):
        out, sf = k.quant.swiglu_forward_and_per_token_cast(t("x"), "e4m3", p["npc"], topk_weights=t("topk_weights"),
                                                            clamp_value=p["clamp"], **layout)
        return {"out": out, "out_sf": sf}
    return problem("quant.swiglu_forward_and_per_token_cast", {"num_expanded_tokens": p["n"], "hidden_size": p["h"]},
                   {"out": EXP, "out_sf": exp_scales(layout)}, call,
                   tensors={"x": "bf16", **({"topk_weights": ""} if p["weights"] else {})},
                   attributes={"num_per_channels": p["npc"], **layout,
                               **({} if p["clamp"] is None else {"clamp_value": p["clamp"]})})


@grid.map("swiglu_forward")
def swiglu_forward(kernel, p):
    def call(k, t):
        return {"out": k.quant.swiglu_forward(t("x"), p["out"], topk_weights=t("topk_weights"))}
    return problem("quant.swiglu_forward", {"num_expanded_tokens": p["n"], "hidden_size": p["h"]}, {"out": EXP}, call,
                   tensors={"x": "bf16", "out": FORMATS[p["out"]], **({"topk_weights": ""} if p["weights"] else {})})


def gradients(p, results):
    """Names of the peer's results, which come in this order."""
    if p["weights"]:
        results = [*results, "topk_weights_grad"]
    return [*results, "act_out"] if p["recompute"] else results


def wanted_gradients(p):
    return {**({"topk_weights": "", "topk_weights_grad": ""} if p["weights"] else {}),
            **({"act_out": ""} if p["recompute"] else {})}


WEIGHTS_GRAD = alike(1e-8)  # a sum over the row


@grid.map("swiglu_backward")
def swiglu_backward(kernel, p):
    def call(k, t):
        results = k.quant.swiglu_backward(t("x"), t("out_grad"), p["dtype"], topk_weights=t("topk_weights"),
                                          do_recompute=p["recompute"])
        return dict(zip(gradients(p, ["x_grad"]), results, strict=True))
    return problem("quant.swiglu_backward", {"num_expanded_tokens": p["n"], "hidden_size": p["h"]},
                   {"x_grad": EXP, "topk_weights_grad": WEIGHTS_GRAD, "act_out": EXP}, call,
                   tensors={"x": FORMATS[p["dtype"]], "out_grad": FORMATS[p["dtype"]], **wanted_gradients(p)})


@grid.map("swiglu_backward_and_per_token_cast")
def swiglu_backward_and_per_token_cast(kernel, p):
    layout = flags(p["sf"])

    def call(k, t):
        x_grad, (codes, sf), *others = k.quant.swiglu_backward_and_per_token_cast(
            (t("x"), t("x_sf")), t("out_grad"), "e4m3", p["npc"], topk_weights=t("topk_weights"),
            do_recompute=p["recompute"], **layout)
        return {"x_grad": x_grad, "x_grad_fp8": codes, "x_grad_fp8_sf": sf, **dict(zip(gradients(p, []), others, strict=True))}
    return problem("quant.swiglu_backward_and_per_token_cast", {"num_expanded_tokens": p["n"], "hidden_size": p["h"]},
                   {"x_grad": EXP, "x_grad_fp8": EXP, "x_grad_fp8_sf": exp_scales(layout), "topk_weights_grad": WEIGHTS_GRAD,
                    "act_out": EXP}, call,
                   tensors={"x_sf": "f32", "out_grad": "bf16", **wanted_gradients(p)},
                   data={"x_sf": "uniform"}, attributes={"num_per_channels": p["npc"], **layout})


# --- casts --------------------------------------------------------------------------------------------------------

@grid.map("per_token_cast")
def per_token_cast(kernel, p):
    layout = flags(p["sf"])
    block = p.get("x_block")

    def call(k, t):
        x = (t("x"), t("x_sf")) if block else t("x")
        out, sf = k.quant.per_token_cast(x, p["fmt"], p["npc"], tuple(block) if block else None, **layout)
        return {"out": out, "out_sf": sf}
    attributes = {"num_per_channels": p["npc"], "fmt": p["fmt"], **layout}
    tensors = {"x": FORMATS[p["dtype"]]}
    if block:
        attributes |= {"x_block_rows": block[0], "x_block_cols": block[1]}
        tensors["x_sf"] = "f32"
    return problem("quant.per_token_cast", matrix(p), {"out": BITS, "out_sf": BITS}, call, tensors=tensors,
                   attributes=attributes)


@grid.map("per_token_cast_and_cast_back")
def per_token_cast_and_cast_back(kernel, p):
    def call(k, t):
        k.quant.per_token_cast_and_cast_back(t("x"), p["fmt"], p["npc"], round_sf=p["round_sf"])
        return {"x": t("x")}
    return problem("quant.per_token_cast_and_cast_back", matrix(p), {"x": BITS}, call, tensors={"x": FORMATS[p["dtype"]]},
                   attributes={"fmt": p["fmt"], "num_per_channels": p["npc"], "round_sf": p["round_sf"]})


@grid.map("per_block_cast")
def per_block_cast(kernel, p):
    layout = flags(p["sf"])

    def call(k, t):
        out, sf = k.quant.per_block_cast(t("x"), p["fmt"], tuple(p["block"]), **layout)
        return {"out": out, "out_sf": sf}
    return problem("quant.per_block_cast", matrix(p), {"out": BITS, "out_sf": BITS}, call,
                   tensors={"x": FORMATS[p["dtype"]]},
                   attributes={"block_rows": p["block"][0], "block_cols": p["block"][1], "fmt": p["fmt"], **layout})


@grid.map("per_block_cast_lossless")
def per_block_cast_lossless(kernel, p):
    layout = flags(p["sf"])
    dtype, strides = scales_in(p["in_sf"])

    def call(k, t):
        out, sf = k.quant.per_block_cast_lossless((t("x"), t("x_sf")), "e4m3", tuple(p["in_block"]),
                                                  tuple(p["out_block"]), **layout)
        return {"out": out, "out_sf": sf}
    return problem("quant.per_block_cast_lossless", matrix(p), {"out": BITS, "out_sf": BITS}, call,
                   tensors={"x_sf": dtype}, strides=strides,
                   attributes={"x_block_rows": p["in_block"][0], "x_block_cols": p["in_block"][1],
                               "out_block_rows": p["out_block"][0], "out_block_cols": p["out_block"][1], **layout})


@grid.map("per_channel_cast")
def per_channel_cast(kernel, p):
    quantised = p["npc"] is not None

    def call(k, t):
        x = (t("x"), t("x_sf")) if quantised else t("x")
        out, sf = k.quant.per_channel_cast(x, "e4m3", p["npt"], round_sf=p["round_sf"], num_per_channels=p["npc"],
                                           use_packed_ue8m0=p["packed"])
        return {"out": out, "out_sf": sf}
    return problem("quant.per_channel_cast", matrix(p), {"out": BITS, "out_sf": BITS}, call,
                   tensors={"x": FORMATS[p["dtype"]], **({"x_sf": "f32"} if quantised else {})},
                   attributes={"num_per_tokens": p["npt"], "round_sf": p["round_sf"], "use_packed_ue8m0": p["packed"],
                               **({"num_per_channels": p["npc"]} if quantised else {})})


@grid.map("cast_back")
def cast_back(kernel, p):
    dtype, strides = scales_in(p["sf"])

    def call(k, t):
        return {"out": k.quant.cast_back((t("x"), t("x_sf")), p["out"], tuple(p["block"]))}
    packed = dtype == "ue8m0x4"
    return problem("quant.cast_back", matrix(p), {"out": BITS}, call, strides=strides,
                   tensors={"x": FORMATS[p["fmt"]], "x_sf": dtype, "out": FORMATS[p["out"]]},
                   attributes={"x_block_rows": p["block"][0], "x_block_cols": p["block"][1], "use_packed_ue8m0": packed,
                               "use_tma_aligned_col_major_sf": packed})


@grid.map("cast")
def cast(kernel, p):
    def call(k, t):
        return {"out": k.quant.cast(t("x"), t("out").dtype)}
    return problem("quant.cast", {"num_rows": p["n"], "num_cols": p["H"]}, {"out": BITS}, call,
                   tensors={"x": FORMATS[p["src"]], "out": FORMATS[p["dst"]]})


@grid.map("batched_transpose_weight_sf")
def batched_transpose_weight_sf(kernel, p):
    def call(k, t):
        sf = t("x_sf")
        pairs = k.quant.batched_transpose_weight_sf(sf, p["block"], [False] * len(sf), [None] * len(sf))
        return {"out_sf0": [a for a, _ in pairs], "out_sf1": [b for _, b in pairs]}
    shapes = [[p["groups"], n // p["block"], k // p["block"]] for n, k in p["weights"]]
    tiny = 128 // p["block"]
    return problem("quant.batched_transpose_weight_sf", {}, {"out_sf0": BITS, "out_sf1": BITS}, call,
                   shapes={"x_sf": shapes}, tiny_shapes={"x_sf": [[2, tiny, 2 * tiny], [2, 2 * tiny, tiny]]},
                   attributes={"block_size": p["block"]}, data={"x_sf": "power of two"})


# --- mixture of experts -------------------------------------------------------------------------------------------

@grid.map("moe_topk_gate_forward")
def moe_topk_gate_forward(kernel, p):
    shared = p["shared"]
    dims = {"num_tokens": p["n"], "num_experts": p["E"]}
    tensors = {"bias": "", **({"scores": ""} if p["scores"] else {})}
    data, routing = {}, {}
    if shared:  # the grid's point has up to three places for each expert, and wants the logical ids too
        dims["map_columns"] = 3
        tensors |= {"to_physical_map": "", "logical_count": "", "unmapped_topk_idx": ""}
        data = {"to_physical_map": f"integer 0 {3 * (p['E'] + shared)}", "logical_count": "integer 1 4"}
    attributes = {"num_topk": p["k"], "use_shared_as_routed": bool(shared), "num_shared_experts": shared,
                  "routed_scaling_factor": SCALING, "ep_rank": 0}

    def call(k, t):
        ids, weights = k.moe.moe_topk_gate_forward(
            t("logits"), p["k"], bool(shared), shared, SCALING, 0, bias=t("bias"), scores=t("scores"),
            to_physical_map=t("to_physical_map"), logical_count=t("logical_count"),
            unmapped_topk_idx=t("unmapped_topk_idx"))
        return {"topk_idx": ids, "topk_weights": weights, **({"scores": t("scores")} if p["scores"] else {}),
                **({"unmapped_topk_idx": t("unmapped_topk_idx")} if shared else {})}
    # Two scores that differ in their last bit only may change places, and their weights with them.
    ids = {"rule": "few", "fraction": 1e-4}
    return problem("moe.moe_topk_gate_forward", dims,
                   {"topk_idx": ids, "unmapped_topk_idx": ids, "topk_weights": close(2e-5, 2e-8, 1e-4),
                    "scores": close(2e-5, 2e-8)}, call, tensors=tensors, attributes=attributes, data=data)


@grid.map("moe_topk_gate_backward")
def moe_topk_gate_backward(kernel, p):
    def call(k, t):
        return {"logits_grad": k.moe.moe_topk_gate_backward(
            t("scores"), t("topk_idx"), t("topk_weights"), t("topk_weights_grad"), SCALING, mask=t("mask"),
            grad_scores_sum=t("scores_sum_grad"))}
    return problem("moe.moe_topk_gate_backward",
                   {"num_tokens": p["n"], "num_experts": p["E"], "num_topk": p["k"], **({"num_seqs": 2} if p["aux"] else {})},
                   {"logits_grad": alike(1e-9)}, call,
                   tensors={"mask": "", "scores_sum_grad": ""} if p["aux"] else {},
                   attributes={"routed_scaling_factor": SCALING},
                   data={"topk_idx": "distinct num_experts", "scores": "positive", "topk_weights": "positive"})


@grid.map("topk_gate")
def topk_gate(kernel, p):
    def call(k, t):
        return {"topk_idx": k.moe.topk_gate(t("scores"), p["k"])}
    return problem("moe.topk_gate", {"num_tokens": p["n"], "num_experts": p["E"]}, {"topk_idx": BITS}, call,
                   attributes={"num_topk": p["k"]})


@grid.map("normalize_weight")
def normalize_weight(kernel, p):
    def call(k, t):
        denominator, normalized = k.moe.normalize_weight(t("topk_weights"))
        return {"denominator": denominator, "normalized": normalized}
    return problem("moe.normalize_weight", {"num_tokens": p["n"], "num_topk": p["k"]},
                   {"denominator": BITS, "normalized": BITS}, call, attributes={"sum_order": "butterfly"},
                   data={"topk_weights": "positive"})


# --- engram -------------------------------------------------------------------------------------------------------

@grid.map("engram_gate_fwd")
def engram_gate_fwd(kernel, p):
    saved = ["dot", "gate_score", "rstd_x", "rstd_k"] if p["save"] else []

    def call(k, t):
        out, *kept = k.engram.engram_gate_fwd(t("hidden_states"), t("kv"), t("weight_fused"), GATE_EPS, CLAMP,
                                              save_for_backward=p["save"])
        return {"out": out, **dict(zip(saved, kept))}
    return problem("engram.gate", streams(p),
                   {"out": alike(1e-7), "dot": alike(1e-9), "gate_score": alike(1e-9), "rstd_x": close(4e-6),
                    "rstd_k": close(4e-6)}, call, tensors={"kv": "", **{name: "" for name in saved}},
                   attributes={"clamp_value": CLAMP, "eps": GATE_EPS, "save_for_backward": p["save"]})


@grid.map("engram_gate_bwd")
def engram_gate_bwd(kernel, p):
    def call(k, t):
        x, kv, partial = k.engram.engram_gate_bwd(t("out_grad"), t("hidden_states"), t("kv"), t("weight_fused"),
                                                  t("dot"), t("gate_score"), t("rstd_x"), t("rstd_k"), CLAMP)
        return {"hidden_states_grad": x, "kv_grad": kv, "weight_fused_grad": Deferred(lambda: partial.sum(0))}
    return problem("engram.gate_backward", streams(p),
                   {"hidden_states_grad": alike(1e-6), "kv_grad": alike(1e-6), "weight_fused_grad": alike(1e-8)}, call,
                   tensors={"kv": "", "kv_grad": ""}, attributes={"clamp_value": CLAMP},
                   data={"gate_score": "uniform", "rstd_x": "positive", "rstd_k": "positive"},
                   note="Portile sums weight_fused_grad, the peer leaves a partial sum per SM")


@grid.map("fused_weight")
def fused_weight(kernel, p):
    def call(k, t):
        return {"weight_fused": k.engram.fused_weight(t("weight_hidden"), t("weight_embed"))}
    return problem("engram.fused_weight", {"mhc_mult": p["m"], "hidden_size": p["H"]}, {"weight_fused": BITS}, call)


@grid.map("grad_w_reduce")
def grad_w_reduce(kernel, p):
    def call(k, t):
        k.engram.grad_w_reduce(t("weight_fused_grad_partial"), t("weight_hidden"), t("weight_embed"),
                               t("weight_hidden_grad"), t("weight_embed_grad"))
        return {name: t(name) for name in ("weight_hidden_grad", "weight_embed_grad")}
    return problem("engram.grad_w_reduce", {"num_partials": 132, "mhc_mult": p["m"], "hidden_size": p["H"]},
                   {"weight_hidden_grad": alike(1e-9), "weight_embed_grad": alike(1e-9)}, call,
                   attributes={"accumulate": True})


@grid.map("engram_hash")
def engram_hash(kernel, p):
    def call(k, t):
        return {"out": k.engram.engram_hash(t("ngram_token_ids"), t("multipliers"), t("vocab_sizes"), t("offsets"))}
    return problem("engram.hash",
                   {"num_tokens": p["n"], "max_ngram_size": p["ngram"], "num_ngram_layers": p["L"],
                    "num_embed_table_per_ngram": p["tables"]}, {"out": BITS}, call,
                   data={"ngram_token_ids": "integer 0 100000", "multipliers": "integer 1 1000000000",
                         "vocab_sizes": "integer 100000 200000", "offsets": "integer 0 1000000"})


SCALES = {"col_scale": "positive", "row_scale": "positive"}


@grid.map("engram_sinkhorn_step")
def engram_sinkhorn_step(kernel, p):
    def call(k, t):
        norm, partial = k.engram.engram_sinkhorn_step(t("matrix"), t("row_scale"), t("col_scale"), STEP_EPS)
        return {"row_norm": norm, "row_scale": t("row_scale"), "col_sumsq": Deferred(lambda: partial.sum(0))}
    return problem("engram.sinkhorn_step", {"num_rows": p["N"], "head_dim": p["D"]},
                   {"row_norm": close(5e-6), "row_scale": close(5e-6), "col_sumsq": close(1e-5)}, call,
                   attributes={"eps": STEP_EPS}, data=SCALES,
                   bytes="4 * num_rows * head_dim + 12 * num_rows + 8 * head_dim",
                   note="Portile sums col_sumsq, the peer leaves partial sums to engram_sinkhorn_step_reduce")


@grid.map("engram_sinkhorn_step_reduce")
def engram_sinkhorn_step_reduce(kernel, p):
    def call(k, t):
        k.engram.engram_sinkhorn_step_reduce(t("col_sumsq_partial"), t("col_sumsq"))
        return {"col_sumsq": t("col_sumsq")}
    return problem("engram.sinkhorn_step_reduce", {"num_partials": 396, "head_dim": p["D"]},
                   {"col_sumsq": close(6e-6, 2e-5)}, call, data={"col_sumsq_partial": "positive"})


@grid.map("engram_sinkhorn_finalize")
def engram_sinkhorn_finalize(kernel, p):
    alpha = p["D"] ** 0.5

    def call(k, t):
        return {"out": k.engram.engram_sinkhorn_finalize(t("matrix"), t("row_scale"), t("col_scale"), STEP_EPS, alpha)}
    return problem("engram.sinkhorn_finalize", {"num_rows": p["N"], "head_dim": p["D"]}, {"out": close(5e-6, 2e-5)},
                   call, attributes={"eps": STEP_EPS, "alpha": alpha}, data=SCALES)


@grid.map("engram_sinkhorn_momentum_update")
def engram_sinkhorn_momentum_update(kernel, p):
    def call(k, t):
        out = k.engram.engram_sinkhorn_momentum_update(t("grad"), t("momentum_buffer"), BETA1, p["nesterov"])
        return {"out": out, "momentum_buffer": t("momentum_buffer")}
    return problem("engram.sinkhorn_momentum_update", {"numel": p["numel"]}, {"out": BITS, "momentum_buffer": BITS},
                   call, tensors={"grad": FORMATS[p["grad"]], "momentum_buffer": FORMATS[p["momentum"]]},
                   attributes={"beta1": BETA1, "nesterov": p["nesterov"]})


# --- hyper-connections --------------------------------------------------------------------------------------------

MIX = close(2e-5, 4e-6)


@grid.map("mhc_pre_big_fuse_fwd")
def mhc_pre_big_fuse_fwd(kernel, p):
    def call(k, t):
        k.mhc.mhc_pre_big_fuse_fwd(
            t("out_mul_splitted"), t("sqrsum_splitted"), t("scale"), t("base"), t("residual"), t("post_mix"),
            flat(t("comb_mix")), t("layer_input"), NORM_EPS, PRE_EPS, SINKHORN_EPS, POST_MULT, p["repeat"],
            n_splits=p["S"])
        return {name: t(name) for name in ("post_mix", "comb_mix", "layer_input")}
    mean = p["m"] * p["H"] // p["S"]
    return problem("mhc.pre_big_fuse", {"n_splits": p["S"], **streams(p)},
                   {"post_mix": MIX, "comb_mix": MIX, "layer_input": alike(1e-6)}, call,
                   tensors={"out_mul_splitted": "", "sqrsum_splitted": ""},
                   # Of a residual of unit variance: sigmoids and exponentials of ordinary size.
                   data={"sqrsum_splitted": f"integer {mean * 9 // 10} {mean * 11 // 10}"},
                   attributes={"norm_eps": NORM_EPS, "pre_eps": PRE_EPS, "sinkhorn_eps": SINKHORN_EPS,
                               "post_mult_value": POST_MULT, "sinkhorn_repeat": p["repeat"]})


@grid.map("mhc_post_fwd")
def mhc_post_fwd(kernel, p):
    def call(k, t):
        out = k.mhc.mhc_post_fwd(t("x")[None], t("residual")[None], t("post_mix")[None, ..., None], t("comb_mix")[None])
        return {"out": out}
    return problem("mhc.post", streams(p), {"out": FOUR_PRODUCTS}, call)


@grid.map("mhc_post_bwd")
def mhc_post_bwd(kernel, p):
    def call(k, t):
        x, residual, post, comb = k.mhc.mhc_post_bwd(t("x")[None], t("residual")[None], t("post_mix")[None, ..., None],
                                                     t("comb_mix")[None], t("out_grad")[None])
        return {"x_grad": x, "residual_grad": residual, "post_mix_grad": post, "comb_mix_grad": comb}
    return problem("mhc.post_backward", streams(p),
                   {"x_grad": ROUNDED, "residual_grad": ROUNDED, "post_mix_grad": alike(1e-9), "comb_mix_grad": alike(1e-9)},
                   call, tensors={"residual_grad": ""})


@grid.map("mhc_pre_apply_mix_fwd")
def mhc_pre_apply_mix_fwd(kernel, p):
    def call(k, t):
        k.mhc.mhc_pre_apply_mix_fwd(t("x"), t("mix"), t("out"))
        return {"out": t("out")}
    return problem("mhc.pre_apply_mix", streams(p), {"out": ROUNDED}, call)


@grid.map("mhc_pre_apply_mix_bwd")
def mhc_pre_apply_mix_bwd(kernel, p):
    def call(k, t):
        return {"mix_grad": k.mhc.mhc_pre_apply_mix_bwd(t("out_grad"), t("x"), t("mix"), t("x_grad")),
                "x_grad": t("x_grad")}
    return problem("mhc.pre_apply_mix_backward", streams(p), {"mix_grad": alike(1e-9), "x_grad": ROUNDED}, call,
                   tensors={"x_grad": ""}, attributes={"accumulate": True})


@grid.map("expand_to_mhc_fwd")
def expand_to_mhc_fwd(kernel, p):
    def call(k, t):
        k.mhc.expand_to_mhc_fwd(t("x"), t("out"))
        return {"out": t("out")}
    return problem("mhc.expand", {"num_tokens": p["n"], "hidden_size": p["H"]}, {"out": BITS}, call,
                   attributes={"mhc_mult": p["m"]}, kind="write")


@grid.map("expand_to_mhc_bwd")
def expand_to_mhc_bwd(kernel, p):
    def call(k, t):
        k.mhc.expand_to_mhc_bwd(t("out_grad"), t("x_grad"))
        return {"x_grad": t("x_grad")}
    return problem("mhc.expand_backward", streams(p), {"x_grad": ROUNDED}, call)


@grid.map("mhc_multilayer_recompute")
def mhc_multilayer_recompute(kernel, p):
    def call(k, t):
        k.mhc.mhc_multilayer_recompute(t("initial_residual"), t("pre_mix"), t("layer_output"), t("post_mix"),
                                       t("comb_mix"), t("layer_input"), t("residual"))
        return {"layer_input": t("layer_input"), "residual": t("residual")}
    return problem("mhc.multilayer_recompute", streams(p), {"layer_input": MANY_LAYERS, "residual": MANY_LAYERS}, call,
                   lists={"pre_mix": p["L"], "layer_input": p["L"],
                          **{name: p["P"] for name in ("layer_output", "post_mix", "comb_mix", "residual")}})


@grid.map("mhc_head_compute_mix_fwd")
def mhc_head_compute_mix_fwd(kernel, p):
    def call(k, t):
        k.mhc.mhc_head_compute_mix_fwd(t("x"), t("scale"), t("base"), t("out"), PRE_EPS)
        return {"out": t("out")}
    return problem("mhc.head_compute_mix", {"num_tokens": p["n"], "mhc_mult": p["m"]}, {"out": MIX}, call,
                   attributes={"pre_eps": PRE_EPS})


@grid.map("mhc_head_compute_mix_bwd")
def mhc_head_compute_mix_bwd(kernel, p):
    def call(k, t):
        sms = k.config.get_num_sms()
        # Written whole by the peer: not filled anew at each call.
        scale = t.once("scale partial", lambda: t.new((sms, 1), "f32"))
        base = t.once("base partial", lambda: t.new((sms, p["m"]), "f32"))
        k.mhc.mhc_head_compute_mix_bwd(t("out_grad"), t("x"), t("scale"), t("base"), t("x_grad"), scale, base, sms)
        return {"x_grad": t("x_grad"), "scale_grad": Deferred(lambda: scale.sum(0)),
                "base_grad": Deferred(lambda: base.sum(0))}
    return problem("mhc.head_compute_mix_backward", {"num_tokens": p["n"], "mhc_mult": p["m"]},
                   {"x_grad": close(2e-4, 2e-5), "scale_grad": alike(1e-8), "base_grad": alike(1e-8)}, call,
                   note="Portile sums scale_grad and base_grad, the peer leaves a partial sum per SM")


@grid.map("mhc_pre_split_mixes_fwd")
def mhc_pre_split_mixes_fwd(kernel, p):
    def call(k, t):
        k.mhc.mhc_pre_split_mixes_fwd(t("x"), t("scale"), t("base"), t("pre_mix"), t("post_mix"), flat(t("comb_mix")),
                                      POST_MULT, PRE_EPS)
        return {name: t(name) for name in ("pre_mix", "post_mix", "comb_mix")}
    return problem("mhc.pre_split_mixes", {"num_tokens": p["n"], "mhc_mult": p["m"]},
                   {"pre_mix": MIX, "post_mix": MIX, "comb_mix": MIX}, call,
                   attributes={"post_mult_value": POST_MULT, "pre_eps": PRE_EPS})


@grid.map("mhc_pre_split_mixes_bwd")
def mhc_pre_split_mixes_bwd(kernel, p):
    def call(k, t):
        k.mhc.mhc_pre_split_mixes_bwd(t("pre_mix_grad"), t("post_mix_grad"), flat(t("comb_mix_grad")), t("x"),
                                      t("post_mix"), t("scale"), t("base"), t("x_grad"), t("scale_grad"), t("base_grad"),
                                      POST_MULT)
        return {name: t(name) for name in ("x_grad", "scale_grad", "base_grad")}
    return problem("mhc.pre_split_mixes_backward", {"num_tokens": p["n"], "mhc_mult": p["m"]},
                   {"x_grad": close(2e-5, 4e-5), "scale_grad": alike(1e-8), "base_grad": alike(1e-8)}, call,
                   tensors={"post_mix": ""}, attributes={"post_mult_value": POST_MULT}, prepare=fitting_post_mix(POST_MULT))


@grid.map("mhc_sinkhorn_fwd")
def mhc_sinkhorn_fwd(kernel, p):
    def call(k, t):
        k.mhc.mhc_sinkhorn_fwd(t("x"), t("out"), p["repeat"], SINKHORN_EPS)
        return {"out": t("out")}
    return problem("mhc.sinkhorn", {"num_tokens": p["n"], "mhc_mult": p["m"]}, {"out": close(5e-6, 2e-5)}, call,
                   attributes={"repeat": p["repeat"], "eps": SINKHORN_EPS})


@grid.map("mhc_sinkhorn_bwd")
def mhc_sinkhorn_bwd(kernel, p):
    def call(k, t):
        k.mhc.mhc_sinkhorn_bwd(t("out_grad"), t("x"), t("x_grad"), p["repeat"], SINKHORN_EPS)
        return {"x_grad": t("x_grad")}
    return problem("mhc.sinkhorn_backward", {"num_tokens": p["n"], "mhc_mult": p["m"]}, {"x_grad": close(2e-4, 2e-5)},
                   call, attributes={"repeat": p["repeat"], "eps": SINKHORN_EPS})


def mixes(p):
    return {"num_tokens": p["n"], "n_rms_group": p["G"], "mhc_mult3": p["m"] * (p["m"] + 2)}


@grid.map("mhc_reduce_partials_and_rmsnorm_fwd")
def mhc_reduce_partials_and_rmsnorm_fwd(kernel, p):
    def call(k, t):
        k.mhc.mhc_reduce_partials_and_rmsnorm_fwd(t("out_mul_splitted"), t("sqrsum_splitted"), t("out_mul"), t("sqrsum"),
                                                  t("out"), p["Kg"], NORM_EPS, p["S"])
        return {name: t(name) for name in ("out_mul", "sqrsum", "out")}
    return problem("mhc.reduce_partials_and_rmsnorm", {"n_splits": p["S"], **mixes(p)},
                   {"out_mul": alike(1e-11), "sqrsum": close(2e-6), "out": alike(1e-11)}, call,
                   tensors={"out_mul": "", "sqrsum": ""}, data={"sqrsum_splitted": "positive"},
                   attributes={"rms_group_size": p["Kg"], "norm_eps": NORM_EPS})


@grid.map("mhc_reduce_partials_and_rmsnorm_bwd")
def mhc_reduce_partials_and_rmsnorm_bwd(kernel, p):
    def call(k, t):
        k.mhc.mhc_reduce_partials_and_rmsnorm_bwd(t("out_grad"), t("out_mul"), t("sqrsum"), t("out_mul_grad"),
                                                  t("sqrsum_grad"), p["Kg"], NORM_EPS)
        return {name: t(name) for name in ("out_mul_grad", "sqrsum_grad")}
    return problem("mhc.reduce_partials_and_rmsnorm_backward", mixes(p),
                   {"out_mul_grad": close(2e-5), "sqrsum_grad": alike(1e-9)}, call, data={"sqrsum": "positive"},
                   attributes={"rms_group_size": p["Kg"], "norm_eps": NORM_EPS})


@grid.map("mhc_fn_normw_merge_fwd")
def mhc_fn_normw_merge_fwd(kernel, p):
    def call(k, t):
        k.mhc.mhc_fn_normw_merge_fwd(t("fn"), t("norm_weight"), t("out"))
        return {"out": t("out")}
    return problem("mhc.fn_normw_merge", {"num_rows": p["M"], "num_cols": p["N"]}, {"out": BITS}, call)


@grid.map("mhc_fn_normw_merge_bwd")
def mhc_fn_normw_merge_bwd(kernel, p):
    def call(k, t):
        k.mhc.mhc_fn_normw_merge_bwd(t("fn"), t("norm_weight"), t("out_grad"), t("fn_grad"), t("norm_weight_grad"))
        return {name: t(name) for name in ("fn_grad", "norm_weight_grad")}
    return problem("mhc.fn_normw_merge_backward", {"num_rows": p["M"], "num_cols": p["N"]},
                   {"fn_grad": close(1e-5, 1e-5), "norm_weight_grad": alike(1e-10)}, call,
                   tensors={"fn_grad": "", "norm_weight_grad": ""}, attributes={"accumulate": True})
