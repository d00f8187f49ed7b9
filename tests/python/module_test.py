"""The Python module on the host: golden data through numpy (and torch where it is), and what bad input raises."""

import importlib.util
import json
import sys
import unittest
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)

import portile

GOLDEN = Path(__file__).parents[1] / "golden"
PLAIN = ("f32", "f64", "i32", "i64", "u32")
HAVE_TORCH = importlib.util.find_spec("torch") is not None
TAKE = "quant.per_token_cast"


def strided(shape, strides, dtype):
    """Zeros, laid out with these strides."""
    if strides is None or not all(shape):
        return np.zeros(shape, dtype)
    flat = np.zeros(1 + sum((n - 1) * s for n, s in zip(shape, strides)), dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * flat.itemsize for s in strides])


def golden_cases(op):
    file = GOLDEN / (op.replace(".", "/") + ".json")
    for case in json.loads(file.read_text())["cases"]:
        yield file.parent, case


def run_golden(test, op, as_list=(), wrap=lambda a: a, unwrap=lambda a: a):
    info = next(o for o in portile.ops() if o["name"] == op)
    attributes = {f["name"] for f in info["fields"] if f["kind"] == "attribute"}
    for folder, case in golden_cases(op):
        with test.subTest(op=op, case=case["name"]):
            fields = {n: v for n, v in case["params"].items() if n in attributes}
            expected = {}
            for a in case["arrays"]:
                data = np.load(folder / a["file"])
                array = strided(a["shape"], a.get("strides"), data.dtype)
                if a["role"] == "out":
                    expected[a["name"]] = data
                else:
                    array[...] = data
                tensor = wrap(array)
                if a["dtype"] not in PLAIN:
                    tensor = portile.typed(tensor, a["dtype"])
                fields[a["name"]] = [tensor] if a["name"] in as_list else tensor
            portile.run(op, implementation="reference", **fields)
            for name, want in expected.items():
                got = fields[name][0] if name in as_list else fields[name]
                got = unwrap(got.tensor if isinstance(got, portile.Typed) else got)
                test.assertTrue(np.array_equal(np.ascontiguousarray(got).view(np.uint8), want.view(np.uint8)), name)


class Golden(unittest.TestCase):
    def test_per_token_cast(self):
        run_golden(self, TAKE)

    def test_topk_gate(self):
        run_golden(self, "moe.topk_gate")

    def test_group_count(self):
        run_golden(self, "moe.group_count")

    def test_tensor_lists(self):
        run_golden(self, "quant.batched_transpose_weight_sf", as_list=("x_sf", "out_sf0", "out_sf1"))

    @unittest.skipUnless(HAVE_TORCH, "torch is not installed")
    def test_torch(self):
        import torch

        def tensor(array):
            array = array.view(np.int16) if array.dtype == np.uint16 else array
            flat = torch.from_numpy(np.array(array))
            strides = [s // array.itemsize for s in array.strides]
            return torch.empty_strided(array.shape, strides, dtype=flat.dtype).copy_(flat)

        run_golden(self, TAKE, wrap=tensor, unwrap=lambda t: t.numpy())


def cast_fields(tokens=4, channels=256):
    x = np.random.default_rng(0).standard_normal((tokens, channels), np.float32)
    return dict(x=x, out=portile.typed(np.zeros((tokens, channels), np.uint8), "e4m3"),
                out_sf=np.zeros((tokens, channels // 128), np.float32), num_per_channels=128)


class Types(unittest.TestCase):
    def test_extension_types(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("ml_dtypes is not installed")
        x = np.random.default_rng(0).standard_normal((4, 256)).astype(ml_dtypes.bfloat16)
        named = dict(x=x, out=np.zeros((4, 256), ml_dtypes.float8_e4m3fn), out_sf=np.zeros((4, 2), np.float32))
        plain = dict(x=portile.typed(x.view(np.uint16), "bf16"), out=portile.typed(np.zeros((4, 256), np.uint8), "e4m3"),
                     out_sf=np.zeros((4, 2), np.float32))
        for fields in (named, plain):
            portile.run(TAKE, num_per_channels=128, **fields)
        self.assertTrue(np.array_equal(named["out"].view(np.uint8), plain["out"].tensor))
        self.assertGreater(named["out"].view(np.uint8).max(), 0)

    def test_bytes_of_the_only_packed_type(self):
        out = np.zeros((4, 256), np.float32)
        portile.run("quant.per_token_cast_back", x=np.full((4, 128), 0x21, np.uint8), num_per_channels=128,
                    x_sf=np.ones((4, 2), np.float32), out=out)
        self.assertEqual(out[0, :2].tolist(), [0.5, 1.0])  # two values in a byte, the low half first

    def test_scale_bytes(self):
        x = portile.typed(np.full((4, 512), 0x38, np.uint8), "e4m3")  # ones
        out = np.zeros((4, 512), np.float32)
        sf = np.full((4, 4), 128, np.uint8)  # 2 each
        portile.run("quant.per_token_cast_back", x=x, x_sf=portile.typed(sf, "e8m0"), out=out, num_per_channels=128)
        self.assertTrue((out == 2).all())

    def test_zero_tokens(self):
        portile.run(TAKE, **cast_fields(tokens=0))

    def test_strided_rows(self):
        fields = cast_fields()
        wide = np.zeros((4, 300), np.float32)
        wide[:, :256] = fields["x"]
        portile.run(TAKE, **fields)
        other = {**cast_fields(), "x": wide[:, :256]}
        portile.run(TAKE, **other)
        self.assertTrue(np.array_equal(fields["out"].tensor, other["out"].tensor))

    def test_outputs_by_infer(self):
        x = np.ones((5, 256), np.float32)
        for options in ({}, {"fmt": "e2m1"}, {"use_tma_aligned_col_major_sf": True},
                        {"round_sf": True, "use_packed_ue8m0": True, "use_tma_aligned_col_major_sf": True}):
            with self.subTest(options=options):
                outputs = portile.empty_outputs(TAKE, like=x, x=x, num_per_channels=128, **options)
                self.assertEqual(set(outputs), {"out", "out_sf"})
                portile.run(TAKE, x=x, num_per_channels=128, **options, **outputs)


class Shapes(unittest.TestCase):
    def test_infer(self):
        got = portile.infer(TAKE, x=portile.spec("bf16", (7, 256)), num_per_channels=128)
        self.assertEqual(got["out"], {"dtype": "e4m3", "shape": [7, 256], "strides": [256, 1], "worst_case": False})
        self.assertEqual(got["out_sf"]["shape"], [7, 2])

    def test_worst_case(self):
        got = portile.infer("moe.get_fused_mapping", topk_idx=portile.spec("i64", (9, 2)), num_experts=4, alignment=8)
        self.assertTrue(got["pos_to_expert"]["worst_case"])
        self.assertFalse(got["expert_start"]["worst_case"])

    def test_declared(self):
        got = portile.declared(TAKE, {"x": "f32"}, num_tokens=7, hidden_size=256, num_per_channels=128)
        self.assertEqual((got["x"]["dtype"], got["x"]["shape"]), ("f32", [7, 256]))
        self.assertNotIn("x_sf", got)

    def test_specs_have_no_memory(self):
        with self.assertRaisesRegex(ValueError, "x = .*: must be a tensor"):
            portile.run(TAKE, **{**cast_fields(), "x": portile.spec("f32", (4, 256))})


class Errors(unittest.TestCase):
    def refused(self, kind, text, **changes):
        with self.assertRaisesRegex(kind, text):
            portile.run(TAKE, **{**cast_fields(), **changes})

    def test_bad_input(self):
        self.refused(ValueError, "foo = 1: no field has this name; the fields are x, ", foo=1)
        self.refused(ValueError, "num_per_channels = 1.5: must be a whole number", num_per_channels=1.5)
        self.refused(ValueError, "num_per_channels = True: must be a whole number", num_per_channels=True)
        self.refused(ValueError, "round_sf = 1: must be True or False", round_sf=1)
        self.refused(ValueError, "x.dtype = i16: must be bf16, f32", x=np.zeros((4, 256), np.int16))
        self.refused(ValueError, "x = 3: must be a tensor", x=3)
        self.refused(ValueError, "x = an object that is no DLPack tensor: must be a tensor", x=object())
        self.refused(ValueError, "out = absent: is required", out=None)
        self.refused(ValueError, "out = 8-bit elements: must have 32 bits to be read as f32",
                     out=portile.typed(np.zeros((4, 256), np.uint8), "f32"))
        self.refused(ValueError, "out_sf.extents", out_sf=np.zeros((4, 3), np.float32))
        self.refused(ValueError, "num_tokens = 9: the shapes say 4", num_tokens=9)
        with self.assertRaisesRegex(ValueError, "no.such.op"):
            portile.run("no.such.op")
        with self.assertRaisesRegex(ValueError, "must be a list of tensors"):
            portile.run("quant.batched_transpose_weight_sf", x_sf=np.ones((1, 1), np.float32), block_size=128)

    def test_unsupported_lists_the_candidates(self):
        self.refused(NotImplementedError, "(?s)forced implementation 'cuda.none' does not take it.*reference",
                     implementation="cuda.none")

    def test_broken_data(self):
        fields = dict(group_idx=np.array([[0, 7]], np.int64), out=np.zeros(4, np.int32), num_groups=4)
        portile.run("moe.group_count", **fields)  # safe, and silent
        with self.assertRaisesRegex(RuntimeError, "group_idx must be -1 or a group below num_groups"):
            portile.run("moe.group_count", checked=True, **fields)
        portile.run("moe.group_count", checked=True, **{**fields, "group_idx": np.array([[0, 1]], np.int64)})


class Choices(unittest.TestCase):
    def test_explain(self):
        fields = cast_fields()
        got = portile.explain(TAKE, **fields)
        self.assertEqual(got["chosen"], "reference")
        self.assertIn("reference", str(got))
        self.assertIn(portile.explain(TAKE, device="gfx942", **fields)["chosen"], ("", "hip.simt"))
        self.assertIn("num_per_channels", portile.explain(TAKE, **{**fields, "num_per_channels": 5})["error"])

    def test_plan(self):
        fields = cast_fields()
        plan = portile.plan(TAKE, **fields)
        self.assertEqual(plan.implementation, "reference")
        plan.run(**fields)
        self.assertGreater(fields["out"].tensor.max(), 0)
        with self.assertRaisesRegex(ValueError, "differs from the planned problem"):
            plan.run(**cast_fields(tokens=5))

    def test_registry(self):
        ops = {o["name"]: o for o in portile.ops()}
        self.assertIn("reference", ops[TAKE]["implementations"])
        x = next(f for f in ops[TAKE]["fields"] if f["name"] == "x")
        self.assertEqual((x["kind"], x["role"], x["optional"]), ("tensor", "in", False))
        self.assertEqual(portile.devices()[-1]["device"], "cpu")

    def test_force(self):
        portile.force(f"{TAKE}=nothing")
        try:
            with self.assertRaises(NotImplementedError):
                portile.run(TAKE, **cast_fields())
        finally:
            portile.force()
        portile.run(TAKE, **cast_fields())


class Readme(unittest.TestCase):
    def test_example(self):
        text = (GOLDEN.parents[1] / "README.md").read_text()
        begin = text.index("```python\n") + len("```python\n")
        exec(compile(text[begin:text.index("```", begin)], "README.md", "exec"), {})


if __name__ == "__main__":
    unittest.main()
