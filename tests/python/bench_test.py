"""Every case of perf/bench.py is a legal problem at its full size, and runs at a small one. With torch, the
benchmark's own path (minus the clock) runs on the host too."""

import importlib.util
import sys
import types
import unittest
from pathlib import Path

if not importlib.util.find_spec("numpy"):
    print("skipped: numpy is not installed")
    sys.exit(77)

import portile  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))
import cases  # noqa: E402

HAVE_TORCH = importlib.util.find_spec("torch") is not None


class Bench(unittest.TestCase):
    def test_full_size_is_legal(self):
        for case in cases.load():
            with self.subTest(op=case["op"], case=case["name"]):
                problem = cases.Problem(case)
                portile.check(problem.op, **problem.specs())
                self.assertGreater(problem.bytes(), 0)

    def test_small_size_runs(self):
        memory = cases.NumpyMemory()
        for case in cases.load():
            with self.subTest(op=case["op"], case=case["name"]):
                problem = cases.Problem(case, tiny=True)
                portile.run(problem.op, checked=True, **problem.allocate(memory))

    @unittest.skipUnless(HAVE_TORCH, "torch is not installed")
    def test_measure(self):
        import bench

        class HostTimer:
            device = "cpu"

            @staticmethod
            def free():
                return 1 << 20

            def graph(self, calls, replays=None):
                for call in calls[:2]:
                    call()
                return 10.0, 9.0, 11.0, len(calls)

            def kernel(self, calls):
                return 9.5, 1

        timer = HostTimer()
        options = types.SimpleNamespace(implementation=None, no_cupti=False)
        ceiling = bench.Ceiling(timer)
        for case in cases.load():
            if case.get("rival") == "fp8":
                continue  # needs the GPU's product
            with self.subTest(op=case["op"], case=case["name"]):
                record = bench.measure(case, options, timer, ceiling, tiny=True)
                self.assertNotIn("skipped", record)
                self.assertIn(case["op"], bench.show(record))


if __name__ == "__main__":
    unittest.main()
