"""perf/peers/compare.py without a GPU and without the peers: every point of a grid is a legal problem and calls the
peer by a signature that it has; statistics, table and records; what it says when something is missing. With torch, the
rules of agreement too."""

import contextlib
import importlib.util
import inspect
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

if not importlib.util.find_spec("numpy"):
    print("skipped: numpy is not installed")
    sys.exit(77)

import numpy as np  # noqa: E402
import portile  # noqa: E402

PEERS = Path(__file__).parents[2] / "perf" / "peers"
sys.path[:0] = [str(PEERS), str(PEERS.parent)]
import cases  # noqa: E402
import compare  # noqa: E402
import points  # noqa: E402

HAVE_TORCH = importlib.util.find_spec("torch") is not None

# The peers' functions: parameters, and the structure of what they return.
V2 = {
    "quant": """
per_token_cast(x, fmt, num_per_channels, x_block_size=None, use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False, use_e4m3_sf=False, stochastic_cast=False, out=None) -> out, out_sf
per_token_cast_and_cast_back(x, fmt, num_per_channels, round_sf=False, use_e4m3_sf=False) ->
per_block_cast(x, fmt, block_size, use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False, out=None) -> out, out_sf
per_block_cast_lossless(x, fmt, x_block_size, out_block_size, use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False) -> out, out_sf
per_channel_cast(x, fmt, num_per_tokens, round_sf=False, num_per_channels=None, use_packed_ue8m0=False) -> out, out_sf
cast_back(x, fmt, x_block_size, x_special_fmt=None) -> out
cast(x, dtype, stochastic_rounding=False) -> out
batched_transpose_weight_sf(sf, block_size, transpose_sf1s, outs) -> [(a, b), (c, d)]
swiglu_forward_and_per_token_cast(x, fmt, num_per_channels, psum_num_tokens_per_expert=None, topk_weights=None, routed_scaling_factor=None, use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False, clamp_value=None, clamped_count=None) -> out, out_sf
swiglu_forward(x, fmt, psum_num_tokens_per_expert=None, topk_weights=None, routed_scaling_factor=None, clamp_value=None, clamped_count=None) -> out
swiglu_backward(x, act_x_grad, fmt, psum_num_tokens_per_expert=None, topk_weights=None, routed_scaling_factor=None, clamp_value=None, do_recompute=False) -> gradients
swiglu_backward_and_per_token_cast(x, act_x_grad, fmt, num_per_channels, psum_num_tokens_per_expert=None, topk_weights=None, routed_scaling_factor=None, use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False, clamp_value=None, do_recompute=False) -> quantised gradients
norm_forward(x, weight, eps, residual=None, out_scale=1.0, out=None, residual_out=None, with_rstd=False) -> out, rstd, residual_out
norm_forward_and_per_token_cast(x, weight, eps, fmt, num_per_channels, residual=None, out_scale=1.0, use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False, with_out_bf16=False, out=None, out_bf16=None, residual_out=None, mega_moe_sf=None, mega_moe_block_m=0, with_rstd=False) -> (out, out_sf), out_bf16, rstd, residual_out
norm_backward(out_grad, x, weight, rstd, residual_out_grad=None, out_scale=1.0, weight_grad=None) -> x_grad, weight_grad
""",
    "transform": """
apply_rotary(query, cos_sin_cache, key=None, positions=None, interleaved=False, conjugate=False, seqlen_offset=0) ->
""",
    "moe": """
topk_gate(scores, num_topk) -> topk_idx
normalize_weight(topk_weights) -> denominator, normalized
moe_topk_gate_forward(logits, num_topk, use_shared_as_routed, num_shared_experts, routed_scaling_factor, ep_rank, scoring_func='sqrtsoftplus', mask=None, bias=None, image_bias=None, image_token_mask=None, fix_routing_mask=None, to_physical_map=None, logical_count=None, unmapped_topk_idx=None, force_random=None, out=None, scores=None) -> topk_idx, topk_weights
moe_topk_gate_backward(scores, topk_idx, topk_weights, grad_topk_weights, routed_scaling_factor, scoring_func='sqrtsoftplus', mask=None, grad_scores_sum=None, out=None) -> logits_grad
""",
    "engram": """
fused_weight(weight_hidden, weight_embed) -> weight_fused
engram_gate_fwd(hidden_states, kv, weight_fused, eps, clamp_value, save_for_backward=True, image_token_mask=None, inplace=False) -> out, dot, gate_score, rstd_x, rstd_k
engram_gate_bwd(grad_out, hidden_states, kv, weight_fused, dot, gate_score, rstd_x, rstd_k, clamp_value, image_token_mask=None) -> hidden_states_grad, kv_grad, partial
grad_w_reduce(grad_w_partial, weight_hidden, weight_embed, grad_weight_hidden, grad_weight_embed) ->
engram_hash(ngram_token_ids, multipliers, vocab_sizes, offsets, image_token_mask=None) -> out
engram_sinkhorn_momentum_update(grad, momentum_buffer, beta1, nesterov=True) -> out
engram_sinkhorn_step(matrix, row_scale, col_scale, eps) -> row_norm, partial
engram_sinkhorn_step_reduce(col_sumsq_partial, col_sumsq) ->
engram_sinkhorn_finalize(matrix, row_scale, col_scale, eps, alpha, out=None) -> out
""",
    "mhc": """
expand_to_mhc_fwd(x, o) ->
expand_to_mhc_bwd(o_grad, x_grad) ->
mhc_head_compute_mix_fwd(input_mix, mhc_scale, mhc_base, output_mix, mhc_pre_eps, token_block_size=0) ->
mhc_head_compute_mix_bwd(output_mix_grad, input_mix, mhc_scale, mhc_base, input_mix_grad, mhc_scale_grad_partial, mhc_base_grad_partial, num_sms, token_block_size=0) ->
mhc_multilayer_recompute(initial_residual, pre_mix_list, layer_output_list, post_mix_list, comb_mix_list, layer_input_list, residual_list) ->
mhc_fn_normw_merge_fwd(fn, normw, out_fn) ->
mhc_fn_normw_merge_bwd(fn, normw, out_fn_grad, fn_grad, normw_grad) ->
mhc_reduce_partials_and_rmsnorm_fwd(out_mul_splitted, sqrsum_splitted, out_mul, sqrsum, out, rms_group_size, rms_eps, n_splits) ->
mhc_reduce_partials_and_rmsnorm_bwd(out_grad, out_mul, sqrsum, out_mul_grad, sqrsum_grad, rms_group_size, rms_eps) ->
mhc_post_fwd(x, residual, post_layer_mix, comb_res_mix, out=None) -> out
mhc_post_bwd(x, residual, post_layer_mix, comb_res_mix, d_o) -> x_grad, residual_grad, post_mix_grad, comb_mix_grad
mhc_pre_apply_mix_fwd(x, mix, o) ->
mhc_pre_apply_mix_bwd(o_grad, x, mix, x_grad) -> mix_grad
mhc_pre_big_fuse_fwd(gemm_out_mul, gemm_out_sqrsum, mhc_scale, mhc_base, residual, post_mix, comb_mix, layer_input, rms_eps, mhc_pre_eps, mhc_sinkhorn_eps, mhc_post_mult_value, sinkhorn_repeat, n_splits=16) ->
mhc_pre_split_mixes_fwd(input_mixes, mhc_scale, mhc_base, pre_layer_mix, post_layer_mix, comb_res_mix, mhc_post_mult_value, mhc_pre_eps) ->
mhc_pre_split_mixes_bwd(pre_layer_mix_grad, post_layer_mix_grad, comb_res_mix_grad, input_mixes, post_layer_mix, mhc_scale, mhc_base, input_mixes_grad, mhc_scale_grad, mhc_base_grad, mhc_post_mult_value) ->
mhc_sinkhorn_fwd(comb_res_mix, comb_res_mix_out, repeat, eps) ->
mhc_sinkhorn_bwd(grad_output, x, grad_input, repeat, eps) ->
""",
}  # yapf: disable

V1 = {
    "engram": """
fused_weight(weight_hidden, weight_embed) -> weight_fused
engram_gate_fwd(hidden_states, k, v, weight_fused, eps, clamp_value, save_for_backward=True) -> out, dot, gate_score, rstd_x, rstd_k
engram_gate_bwd(grad_out, hidden_states, k, v, weight_fused, dot, gate_score, rstd_x, rstd_k, clamp_value) -> hidden_states_grad, k_grad, v_grad, partial
grad_w_reduce(grad_w_partial, weight_hidden, weight_embed, grad_weight_hidden, grad_weight_embed) ->
engram_hash(ngram_token_ids, multipliers, vocab_sizes, offsets) -> out
""",
    "moe": """
aux_fi(topk_idx, num_experts, num_aux_topk) -> out
expand_to_fused(x, token_topk_to_pos, pos_to_expert) -> out
expand_to_fused_with_sf(x, num_per_channels, token_topk_to_pos, pos_to_expert, use_tma_aligned_col_major_sf=False) -> out, out_sf
get_fused_mapping(topk_idx, num_experts, num_expanded_tokens, alignment, force_no_sync=False) -> a, b, c, d, e, f, g, on_host
group_count(group_idx, num_groups) -> out
inplace_unique_group_indices(group_indices, num_groups) ->
mask_indices_by_tp(indices, n, num_ep_ranks, tp_rank, num_tp_ranks) -> out
normalize_weight(topk_weights) -> denominator, normalized
reduce_fused(x, topk_weights, token_topk_to_pos, fp8_format='', sf=None, out=None) -> out
top2_sum_gate(logits, bias, num_topk, num_topk_groups, num_groups, use_shared_as_routed, num_shared_experts, routed_scaling_factor, ep_rank, num_ep_ranks, tp_rank, num_tp_ranks, scoring_func, mask=None, fix_routing_mask=None, to_physical_map=None, logical_count=None, unmapped_topk_idx=None) -> topk_idx, topk_weights
topk_gate(scores, num_topk) -> topk_idx
topk_sum_and_topk_group_idx(scores, num_topk_sum, num_topk_groups) -> topk_group_idx
""",
    "quant": """
per_token_cast(x, fmt, num_per_channels, x_block_size=None, use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False) -> out, out_sf
per_block_cast(x, fmt, block_size, use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False) -> out, out_sf
per_block_cast_lossless(x, fmt, x_block_size, out_block_size, use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False) -> out, out_sf
per_channel_cast(x, fmt, num_per_tokens, round_sf=False) -> out, out_sf
per_channel_cast_and_transpose(x, fmt, num_per_tokens, round_sf=False) -> out, out_sf
per_channel_cast_fused(x, fmt, num_per_tokens, round_sf=False, num_per_channels=None, pos_to_token=None) -> out, out_sf
cast_back(x, fmt, x_block_size, x_special_fmt=None) -> out
swiglu_forward_and_per_token_cast(x, fmt, num_per_channels, pos_to_token_topk=None, topk_weights=None, pos_to_expert=None, use_tma_aligned_col_major_sf=False, round_sf=False, use_packed_ue8m0=False, swiglu_clamp_value=None, clamped_count=None, sf_clamp_min=None) -> out, out_sf
swiglu_forward_and_per_channel_cast_and_transpose(x, fmt, num_per_tokens, round_sf=False, without_transpose=False, swiglu_clamp_value=None) -> out, out_sf
swiglu_backward_and_per_token_cast(x, grad_out, weight, pos_to_token_topk, token_topk_to_pos, num_per_channels, round_sf=False, swiglu_clamp_value=None) -> act_out, (codes, sf), x_grad, topk_weights_grad
""",
    "transpose": """
transpose(x) -> out
batched_transpose(x) -> out
""",
    "mhc.multilayer_recompute_kernel": """
mhc_multilayer_recompute(initial_residual, pre_mix_list, layer_output_list, post_mix_list, comb_mix_list, layer_input_list, residual_list) ->
""",
    "mhc.post_kernel": """
mhc_post_fwd(x, residual, post_layer_mix, comb_res_mix, out=None) -> out
mhc_post_bwd(x, residual, post_layer_mix, comb_res_mix, d_o, fuse_grad_acc=True) -> x_grad, residual_grad, post_mix_grad, comb_mix_grad
""",
    "mhc.norm_fn_kernel": """
round_to_tf32(x) -> rounded
_mhc_pre_norm_fn_bwd_norm(mhc_mult3, n_rms_group, rms_group_size, rms_eps) -> kernel
_mhc_pre_norm_fn_bwd_mul(mhc_mult3, n_rms_group, mhc_hidden_size) -> kernel
""",
    "mhc.pre_split_mixes_kernel": """
_mhc_pre_split_mixes_fwd(mhc_mult, mhc_post_mult_value, mhc_pre_eps, token_block_size) -> kernel
_mhc_pre_split_mixes_bwd(mhc_mult, mhc_post_mult_value, token_block_size, num_sms) -> kernel
""",
    "mhc.sinkhorn_kernel": """
_mhc_sinkhorn_fwd(hidden_size, token_block_size, repeat, eps) -> kernel
_mhc_sinkhorn_bwd(hidden_size, token_block_size, repeat, eps) -> kernel
""",
    "mhc.pre_apply_mix_kernel": """
_mhc_pre_apply_mix_fwd(mhc_mult, hidden) -> kernel
_mhc_pre_apply_mix_bwd(mhc_mult, hidden) -> kernel
""",
    "mhc.expand_kernel": """
expand_to_mhc_fwd_tl(hidden, mhc_mult) -> kernel
expand_to_mhc_bwd_tl(hidden, mhc_mult) -> kernel
""",
    "modeling.mhc.ops.pre_big_fuse": """
mhc_pre_big_fuse(residual, fn, mhc_scale, mhc_base, rms_eps, mhc_pre_eps, mhc_sinkhorn_eps, mhc_post_mult_value, sinkhorn_repeat, n_splits=16) -> post_mix, comb_mix, layer_input
""",
    "modeling.mhc.ops.norm_fn": """
mhc_pre_norm_fn(residual, mhc_fn, mhc_norm_weight, mhc_norm_eps, fuse_grad_acc=True, n_splits=16) -> out
""",
}  # yapf: disable


class Anything:
    """Stands for a result that only has to be passed on, or for a kernel that only has to be called."""

    def __call__(self, *args):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self


ANYTHING = Anything()


def results_of(name, structure, bound):
    if "gradients" in structure:  # as many as the flags ask for
        out = [ANYTHING] + [(ANYTHING, ANYTHING)] * structure.startswith("quantised")
        out += [ANYTHING] * (bound.get("topk_weights") is not None) + [ANYTHING] * bool(bound.get("do_recompute"))
        return tuple(out)
    return eval(structure, {}, _AnyName()) if structure else None  # our own table above


class _AnyName(dict):
    def __missing__(self, key):
        return ANYTHING


def fake_peer(table):
    """A package with the peer's functions: each checks its arguments' number and names, and records them."""
    calls = []

    def function(line):
        head, _, structure = line.partition("->")
        name = head.partition("(")[0]
        namespace = {}
        exec(f"def {head.strip()}: pass", namespace)  # our own table above
        signature = inspect.signature(namespace[name])

        def run(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            calls.append((name, bound.arguments))
            return results_of(name, structure.strip(), bound.arguments)
        return name, run
    library = types.SimpleNamespace(calls=calls, config=types.SimpleNamespace(get_num_sms=lambda: 132))
    for path, lines in table.items():
        module = library
        for part in filter(None, path.split(".")):
            if not hasattr(module, part):
                setattr(module, part, types.SimpleNamespace())
            module = getattr(module, part)
        vars(module).update(map(function, lines.strip().splitlines()))
    return library


def host_tensors(problem, fields):
    roles = {name: field["role"] for name, field in problem.fields.items() if field["kind"] != "attribute"}
    view = lambda v: v.tensor if isinstance(v, portile.Typed) else v
    return points.Tensors(fields, roles, view, lambda v: np.copy(view(v)), lambda shape, dtype: np.zeros(shape, np.float32))


class FakeTimer:
    """Answers as bench.Timer.launches does, without a device."""

    def __init__(self, cost):
        self.cost, self.order = cost, []

    def launches(self, calls):
        self.order = [call() for call in calls]
        return [[("kernel", self.cost[who]), ("Memcpy HtoD (Pageable -> Device)", 1.0)] for who in self.order]


def measured(ratio, agree=True, note="", op="quant.cast"):
    point = points.Point("cast", {"n": ratio}, {"op": op}, None, {}, note)
    times = {"portile": [10.0, 10.0, 11.0], "peer": [10.0 * ratio] * 3, "kernels": [1, 1]}
    return compare.record_of(point, "peer 1", times, 1 << 24, 4.0, agree=agree, agreement="out: bits", implementation="x")


class Mappings:
    @classmethod
    def setUpClass(cls):
        cls.points, cls.left = compare.load_points(cls.GRID)

    def test_all_of_the_grid(self):
        self.assertEqual(len(self.points) + len(self.left), self.NAMES)
        names = [p.name for p in self.points]
        self.assertEqual(len(names), len(set(names)))
        for _, reason in self.left:
            self.assertTrue(reason)

    def test_problems_are_legal(self):
        for point in self.points:
            with self.subTest(point.name):
                problem = cases.Problem(point.case)
                portile.check(problem.op, **problem.specs())
                self.assertGreater(problem.bytes(), 0)

    def test_calls(self):
        library = fake_peer(self.TABLE)
        memory = cases.NumpyMemory()
        for point in self.points:
            with self.subTest(point.name):
                problem = cases.Problem(point.case, tiny=True)
                fields = problem.allocate(memory)
                before = len(library.calls)
                results = point.call(library, host_tensors(problem, fields))
                self.assertGreater(len(library.calls), before)
                written = {name for name in problem.tensors if problem.fields[name]["role"] != "in"}
                self.assertEqual(set(results), written)  # all that is written is compared
                self.assertLessEqual(written, set(point.rules))
                for name, value in results.items():
                    self.assertEqual(isinstance(value, list), problem.fields[name]["kind"] == "tensor_list", name)

    def test_the_peer_writes_its_own_memory(self):
        for point in self.points:
            with self.subTest(point.name):
                problem = cases.Problem(point.case, tiny=True)
                tensors = host_tensors(problem, problem.allocate(cases.NumpyMemory()))
                for name in problem.tensors:
                    own, ours = tensors(name), tensors.fields[name]
                    own, ours = (own, ours) if isinstance(own, list) else ([own], [ours])
                    for a, b in zip(own, ours, strict=True):
                        b = b.tensor if isinstance(b, portile.Typed) else b
                        self.assertEqual(np.shares_memory(a, b), problem.fields[name]["role"] == "in", name)
                self.assertIsNone(tensors("no_such_field"))


class Version2(Mappings, unittest.TestCase):
    GRID, TABLE, NAMES = "tilekernels-v2", V2, 196

    def test_kernel_only_points(self):
        self.assertEqual(sum(p.kernels_only for p in self.points), 3)

    def test_filter(self):
        some, _ = compare.load_points(self.GRID, "norm.*")
        self.assertEqual({p.op.partition(".")[0] for p in some}, {"norm"})
        some, _ = compare.load_points(self.GRID, "cast_back(*", "topk_gate(*")
        self.assertEqual({p.kernel for p in some}, {"cast_back", "topk_gate"})


class Version1(Mappings, unittest.TestCase):
    GRID, TABLE, NAMES = "tilekernels-v1", V1, 260

    def test_rows_that_do_not_count(self):
        """Where the peer leaves rows as they were, a field of the problem tells them."""
        for point in self.points:
            if point.valid_rows:
                with self.subTest(point.name):
                    problem = cases.Problem(point.case)
                    self.assertTrue((problem.arrays[point.valid_rows] < 0).any())


GEMM = {
    "": """
mm(a, b, out) -> out
_scaled_mm(a, b, scale_a, scale_b, out_dtype) -> out
""",
}  # yapf: disable


class Gemm(Mappings, unittest.TestCase):
    GRID, TABLE, NAMES = "gemm", GEMM, 152

    def test_filter(self):
        some, _ = compare.load_points(self.GRID, "dense(dtype=e4m3*")
        self.assertEqual(len(some), 35)
        self.assertEqual({p.extra["dtype"] for p in some}, {"e4m3"})

    def test_loads(self):
        """Skewed or not, the segments fill the rows."""
        for point in self.points:
            if point.kernel == "grouped":
                case = {**point.case, "dims": {**point.case["dims"], "N": 8, "K": 8}}
                fields = cases.Problem(case).allocate(cases.NumpyMemory())
                start, end = fields["expert_start"], fields["expert_end"]
                self.assertEqual((start[0], end[-1]), (0, point.params["M"]))
                self.assertTrue((start[1:] == end[:-1]).all())
                lengths = end - start
                self.assertGreater(lengths.min(), 0)
                self.assertEqual(lengths.max() > 1.5 * lengths.mean(), point.params["loads"] == "skewed")


class Routing(unittest.TestCase):
    def test_tokens_of_a_rank(self):
        """Of every token at least one slot is here, no expert twice; as many slots as chance gives."""
        for experts, ranks, k in ((9, 8, 2), (4, 64, 6), (32, 8, 9)):
            case = {"op": "moe.get_fused_mapping", "name": "", "dims": {"num_tokens": 4000, "num_topk": k},
                    "attributes": {"num_experts": experts, "alignment": 16},
                    "routing": {"num_experts": experts, "num_ep_ranks": ranks, "alignment": 16}}
            topk = cases.Problem(case).arrays["topk_idx"]
            self.assertEqual(topk.shape, (4000, k))
            self.assertTrue((topk >= 0).any(1).all())
            self.assertLess(topk.max(), experts)
            for row in topk[:200]:
                live = row[row >= 0]
                self.assertEqual(len(set(live)), len(live))
            here = 1 - np.prod([(experts * (ranks - 1) - i) / (experts * ranks - i) for i in range(k)])
            self.assertAlmostEqual((topk >= 0).sum() / 4000, k / ranks / here, delta=0.03)


class Statistics(unittest.TestCase):
    def test_spread(self):
        self.assertEqual(compare.spread([4.0]), (4.0, 0.0))
        self.assertEqual(compare.spread([1.0, 2.0, 3.0, 4.0, 100.0]), (3.0, 2.0))

    def test_turns(self):
        timer = FakeTimer({"portile": 2.0, "peer": 5.0})
        times = compare.alternate(timer, lambda: "portile", lambda: "peer", rounds=5, launches=3)
        turns = [who for who, _ in itertools.groupby(timer.order)]
        self.assertEqual(turns, ["portile", "peer", "portile", "peer", "portile", "peer"])  # first and second swap
        self.assertEqual(len(timer.order), 30)
        self.assertEqual(times["portile"], [3.0] * 5)
        self.assertEqual(times["peer"], [6.0] * 5)
        self.assertEqual(times["kernels"], [2, 2])
        times = compare.alternate(timer, lambda: "portile", lambda: "peer", 5, 3, kernels_only=True)
        self.assertEqual((times["portile"], times["kernels"]), ([2.0] * 5, [1, 1]))

    def test_no_cupti(self):
        timer = types.SimpleNamespace(launches=lambda calls: None)
        self.assertIsNone(compare.alternate(timer, None, None, 5, 1))

    def test_a_slow_launch_does_not_count(self):
        class Uneven(FakeTimer):
            def launches(self, calls):
                ran = super().launches(calls)
                ran[1] = [("kernel", 1000.0)]
                return ran
        timer = Uneven({"portile": 2.0, "peer": 5.0})
        times = compare.alternate(timer, lambda: "portile", lambda: "peer", rounds=5, launches=3)
        self.assertEqual(compare.spread(times["portile"]), (3.0, 0.0))

    def test_record(self):
        record = measured(1.5)
        for key in ("peer", "op", "point", "portile_us", "peer_us", "ratio", "share_of_copy", "portile_iqr", "peer_iqr",
                    "bytes", "implementation", "agree"):
            self.assertIn(key, record)
        self.assertEqual(record["portile_us"], 10.0)
        self.assertEqual(record["ratio"], 1.5)
        self.assertAlmostEqual(record["portile_gbs"], (1 << 24) / 1e4)
        self.assertAlmostEqual(record["share_of_copy"], (1 << 24) / 10 / 1e6 / 4)
        self.assertEqual(json.loads(json.dumps(record)), record)
        self.assertIn("1.50", compare.row(record))

    def test_summary(self):
        records = [measured(2.0), measured(0.5, note="a half"), measured(0.98, agree=False, op="norm.forward"),
                   {"point": "gone", "op": "x", "error": "ValueError: no"}]
        lines = compare.summary(records, [("probe", "not the peer")], 4)
        text = "\n".join(lines)
        self.assertIn(f"geometric mean of peer / Portile: {(2 * 0.5 * 0.98) ** (1 / 3):.3f} over 3 points", text)
        self.assertIn("2 points below 1.0, 1 of them below 0.97", text)
        self.assertLess(text.index("0.500  cast"), text.index("0.980  cast"))  # the worst first
        self.assertIn("1 points whose results do not agree", text)
        self.assertIn("gone: ValueError: no", text)
        self.assertIn("probe: not the peer", text)
        self.assertEqual(lines[-1], "3 measured, 1 failed, 1 unmapped, 4 chosen")
        self.assertIn("NO: out", compare.row(records[2]))
        self.assertIn("ValueError", compare.row(records[3]))

    def test_nothing_measured(self):
        self.assertIsNone(compare.geometric_mean([]))
        self.assertEqual(compare.summary([], [], 0)[-1], "0 measured, 0 failed, 0 unmapped, 0 chosen")


class Missing(unittest.TestCase):
    def call(self, *options):
        """(exit status, what it printed to stderr)"""
        with tempfile.TemporaryDirectory() as folder:
            out = str(Path(folder) / "out.jsonl")
            run = subprocess.run([sys.executable, str(PEERS / "compare.py"), "--out", out, *options], text=True,
                                 capture_output=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
            self.assertFalse(Path(out).exists())
        return run.returncode, run.stderr

    def test_peers_absent(self):
        for grid in ("tilekernels-v2", "tilekernels-v1"):
            status, text = self.call("--grid", grid)
            self.assertEqual(status, 2, text)  # where the peer is here, for want of a GPU
            self.assertTrue(text.splitlines()[-1].startswith("compare.py: "), text)
            self.assertNotIn("Traceback", text)
            if HAVE_TORCH and not importlib.util.find_spec("tilelang"):
                self.assertIn("pip install tilelang", text)

    def test_no_sources(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(compare.Missing, "no tile_kernels/__init__.py"):
                compare.load_peer("tilekernels-v2", folder)

    def test_wrong_usage(self):
        self.assertEqual(self.call("--grid", "nothing")[0], 2)
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            compare.arguments(["--grid", "gemm", "--out", "x", "--rounds", "0"])

    def test_no_gpu(self):
        status, text = self.call("--grid", "gemm")
        self.assertEqual(status, 2, text)
        self.assertIn("torch", text)


@unittest.skipUnless(HAVE_TORCH, "torch is not installed")
class Agreement(unittest.TestCase):
    def setUp(self):
        import agree
        import torch
        self.agree, self.torch = agree, torch

    def check(self, rule, a, b, good, words=""):
        ok, text = self.agree.agree(rule, a, b)
        self.assertEqual(ok, good, text)
        self.assertIn(words, text)

    def test_rules(self):
        torch = self.torch
        a = torch.arange(1, 1001, dtype=torch.float32)
        b = a.clone()
        b[3] *= 1 + 1e-4
        self.check({"rule": "bits"}, a, a.clone(), True, "bits")
        self.check({"rule": "bits"}, a, b, False, "1 of 1000")
        self.check({"rule": "few", "fraction": 1e-3}, a, b, True)
        self.check({"rule": "few", "fraction": 1e-4}, a, b, False)
        self.check({"rule": "close", "rtol": 1e-3, "atol": 0, "fraction": 0}, a, b, True)
        self.check({"rule": "close", "rtol": 1e-5, "atol": 0, "fraction": 0}, a, b, False, "1 by too much")
        self.check({"rule": "close", "rtol": 1e-5, "atol": 0, "fraction": 1e-3}, a, b, True)
        self.check({"rule": "close", "rtol": 0, "atol": 1e-3, "fraction": 0}, a, b, True)
        self.check({"rule": "calc_diff", "limit": 1e-12}, a, b, True)
        self.check({"rule": "calc_diff", "limit": 1e-20}, a, b, False)
        self.check({"rule": "bits"}, torch.tensor([0.0]), torch.tensor([-0.0]), False)
        with self.assertRaises(ValueError):
            self.agree.agree({"rule": "bits"}, a, a[:5])

    def test_units_in_the_last_place(self):
        torch = self.torch
        a = torch.tensor([1.0, -1.0, 0.0, 3e-40], dtype=torch.bfloat16)
        up = (a.view(torch.int16) + 1).view(torch.bfloat16)
        self.check({"rule": "ulp", "ulp": 1}, a, up, True, "1 ulp")
        self.check({"rule": "ulp", "ulp": 1}, a, (up.view(torch.int16) + 1).view(torch.bfloat16), False, "2 ulp")
        self.check({"rule": "ulp", "ulp": 1}, torch.tensor([0.0]).bfloat16(), torch.tensor([-0.0]).bfloat16(), True)
        self.check({"rule": "ulp", "ulp": 1}, a, a.float(), False)

    def test_not_finite(self):
        torch = self.torch
        a = torch.tensor([1.0, float("nan"), float("inf")])
        for rule in ({"rule": "close", "rtol": 1e-6, "atol": 0, "fraction": 0}, {"rule": "calc_diff", "limit": 1e-12}):
            self.check(rule, a, torch.tensor([1.0000001, float("nan"), float("inf")]), True)
            self.check(rule, a, torch.tensor([1.0, 2.0, float("inf")]), False)

    def test_part_of_a_tensor(self):
        """Rows that are not defined, and bytes of a last word that no scale fills."""
        torch = self.torch
        a = torch.tensor([[1, 0x01020304], [2, 0x01020304], [3, 5]], dtype=torch.int32)
        b = torch.tensor([[1, 0x0A0A0304], [2, 0x0B0B0304], [9, 9]], dtype=torch.int32)
        rules = {"sf": {"rule": "bits", "last_word": 0xFFFF}}
        rows = torch.tensor([True, True, False])
        self.assertFalse(self.agree.agree_all(rules, {"sf": a}, {"sf": b})[0])
        self.assertTrue(self.agree.agree_all(rules, {"sf": a}, {"sf": b}, rows)[0])
        self.assertFalse(self.agree.agree_all({"sf": {"rule": "bits"}}, {"sf": a}, {"sf": b}, rows)[0])

    def test_layouts(self):
        """Column-major scales, other shapes of the same elements, lists."""
        torch = self.torch
        a = torch.arange(12, dtype=torch.int32).view(3, 4)
        columns = a.t().contiguous().t()
        self.check({"rule": "bits"}, columns, a, True, "bits")
        self.check({"rule": "bits"}, a.view(3, 2, 2), a, True, "bits")
        good, text = self.agree.agree_all({"a": {"rule": "bits"}, "b": {"rule": "bits"}}, {"a": a, "b": [a, a]},
                                          {"a": a, "b": [a, a + 1]})
        self.assertFalse(good)
        self.assertIn("a: bits; b: NOT", text)

    def test_in_pieces(self):
        torch = self.torch
        chunk, self.agree.CHUNK = self.agree.CHUNK, 64
        try:
            a = torch.randn(100, 16)
            b = a.clone()
            b[99, 15] += 1
            self.check({"rule": "bits"}, a, b, False, "1 of 1600")
            self.check({"rule": "calc_diff", "limit": 1e-9}, a, b, False)
        finally:
            self.agree.CHUNK = chunk

    def test_both_sides(self):
        """The peer's part played by Portile's reference: the same bits; and a wrong one is noticed."""
        torch = self.torch
        factor = [1.0]

        def cast(x, dtype, stochastic_rounding=False):
            out = torch.empty_like(x, dtype=dtype)
            portile.run("quant.cast", x=x * factor[0], out=out)
            return out
        library = types.SimpleNamespace(quant=types.SimpleNamespace(cast=cast))
        (point, *_), _ = compare.load_points("tilekernels-v2", "cast(*src=bf16, dst=e4m3*")
        good, text = compare.Side(point, library, device="cpu", tiny=True).compare()
        self.assertTrue(good)
        self.assertEqual(text, "out: bits")
        side = compare.Side(point, library, device="cpu", tiny=True)

        def run(call):
            call()
            return "portile" if call == side.ours else "peer"
        timer = types.SimpleNamespace(launches=lambda calls: [[("kernel", 2.0 if run(c) == "portile" else 3.0)] for c in calls])
        record = compare.measure(side, "peer 1", timer, lambda size, kind: 4.0, rounds=5, launches=2)
        self.assertEqual((record["ratio"], record["agree"], record["rounds"]), (1.5, True, 5))
        self.assertTrue(record["implementation"])
        factor[0] = 1.25
        good, text = compare.Side(point, library, device="cpu", tiny=True).compare()
        self.assertFalse(good)
        self.assertIn("out: NOT", text)


if __name__ == "__main__":
    unittest.main()
