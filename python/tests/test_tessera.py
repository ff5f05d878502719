"""The Python package, over the program that it finds: python3 -m unittest discover python/tests. With PYTHONPATH=python
and TESS_PROGRAM a build's program is tested; without them an installed wheel."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy as np

import tessera

SMALL = dict(data="synthetic", synthetic_rows=256, model="mlp", mlp={"hidden": [16]}, evaluate=False)


class Train(unittest.TestCase):
    def test_result(self):
        lines = []
        run = tessera.train(strategy="fsdp", ranks=2, steps=6, log_every=1, on_line=lines.append, **SMALL)
        other = tessera.train(strategy="ddp", ranks=2, steps=6, log_every=1, progress=False, **SMALL)
        self.assertEqual(run.final["hash"], other.final["hash"])
        self.assertEqual(run.head["strategy"], "fsdp")
        self.assertEqual(run.head["options"]["mlp.hidden"], "16")
        np.testing.assert_array_equal(run.steps["step"], np.arange(1, 7))
        np.testing.assert_array_equal(run.steps["loss"], other.steps["loss"])
        self.assertEqual(lines, run.lines)
        self.assertIn("hash of all parameters", run.output)
        self.assertIn("fsdp", repr(run))

    def test_weights_are_mapped(self):
        run = tessera.train(strategy="single", steps=2, **SMALL)
        weights = run.weights()
        self.assertEqual(sum(array.size for array in weights.values()), run.head["parameters"])
        for array in weights.values():
            self.assertEqual(array.dtype, np.float32)
            self.assertFalse(array.flags.owndata or array.flags.writeable)
        raw = (run.folder / "weights.safetensors").read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        for name, array in weights.items():
            begin, end = header[name]["data_offsets"]
            data = raw[8 + int.from_bytes(raw[:8], "little") :][begin:end]
            self.assertEqual(hashlib.sha1(array.tobytes()).digest(), hashlib.sha1(data).digest())

    def test_folders(self):
        run = tessera.train(steps=1, strategy="single", **SMALL)
        folder = run.folder
        self.assertTrue(folder.exists())
        del run
        self.assertFalse(folder.exists())
        with tempfile.TemporaryDirectory() as work:
            kept = tessera.train(steps=1, strategy="single", **SMALL).keep(Path(work) / "kept")
            again = tessera.train(steps=2, strategy="single", run=Path(work) / "mine", save_every="off", **SMALL)
            hash_there = tessera.load(Path(work) / "mine").final["hash"]
            self.assertEqual(again.final["hash"], hash_there)
            del kept, again
            self.assertTrue((Path(work) / "kept" / "metrics.jsonl").exists())
            self.assertTrue((Path(work) / "mine" / "metrics.jsonl").exists())

    def test_progress(self):
        code = ("import tessera; tessera.train(data='synthetic', synthetic_rows=256, strategy='single', steps=3,"
                "log_every=1, evaluate=False, progress=True)")
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
        self.assertIn("step 3/3, loss", shown)


class Errors(unittest.TestCase):
    def test_bad_option(self):
        with self.assertRaises(tessera.Error) as caught:
            tessera.train(batchsize=3, **SMALL)
        self.assertEqual(str(caught.exception), "command line: unknown option 'batchsize'; did you mean 'batch-size'?")
        self.assertEqual(caught.exception.exit_status, 2)

    def test_damaged_files(self):
        with tempfile.TemporaryDirectory() as work:
            with self.assertRaisesRegex(tessera.Error, "metrics.jsonl"):
                tessera.load(work)
            Path(work, "metrics.jsonl").write_text('{"run": {}}\n{"step": \n')
            with self.assertRaisesRegex(tessera.Error, "line 2"):
                tessera.load(work)
            Path(work, "metrics.jsonl").write_text('{"run": {}}\n{"step": ')
            run = tessera.load(work)
            self.assertEqual((len(run.lines), run.final), (1, {}))
            for raw in (b"", b"\xff" * 16, b"\x60\0\0\0\0\0\0\0" + json.dumps(
                    {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode().ljust(96)):
                Path(work, "weights.safetensors").write_bytes(raw)
                with self.assertRaises((tessera.Error, ValueError)):
                    run.weights()

    def test_callback_ends_the_run(self):
        with tempfile.TemporaryDirectory() as work:
            def stop(line):
                if line.get("step"):
                    raise RuntimeError("enough")
            with self.assertRaisesRegex(RuntimeError, "enough"):
                tessera.train(steps=10**7, log_every=10, ranks=2, strategy="ddp", run=work + "/run", on_line=stop,
                              **SMALL)
            self.assertTrue(tessera.load(work + "/run").lines)
            self.assert_none_runs(work)

    def test_interrupt(self):
        with tempfile.TemporaryDirectory() as work:
            timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            begin = time.monotonic()
            with self.assertRaises(KeyboardInterrupt):
                tessera.train(steps=10**7, ranks=2, strategy="ddp", run=work + "/run", **SMALL)
            self.assertLess(time.monotonic() - begin, 60)
            self.assert_none_runs(work)

    def assert_none_runs(self, folder):
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = process.read_bytes()
            except OSError:
                continue
            self.assertNotIn(folder.encode(), words)


class Others(unittest.TestCase):
    def test_compare(self):
        result = tessera.compare(strategies=["single", "fsdp"], ranks=2, steps=3, **SMALL)
        hashes = {run["hash"] for run in result["runs"]}
        self.assertEqual((len(result["runs"]), len(hashes)), (2, 1))

    def test_plan(self):
        result = tessera.plan("models/llama-8b.yaml", ranks=8, device="h100-80")
        times = [layout["step_s"] for layout in result["layouts"]]
        self.assertTrue(times and times == sorted(times))

    def test_generate(self):
        run = tessera.train(model="gpt", gpt={"layers": 1, "heads": 2, "width": 16, "context": 16}, data="synthetic",
                            synthetic_rows=64, batch_size=8, steps=2, strategy="single", evaluate=False,
                            **{"data.length": 16})
        self.assertTrue(tessera.generate(run, "ab", tokens=4, temperature=0).startswith("ab"))


class Document(unittest.TestCase):
    def test_example(self):
        text = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
        code = text.split("```python\n")[1].split("```")[0]
        names = {}
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            exec(compile(code, "docs/python.md", "exec"), names)
        self.assertEqual(len(names["table"]["runs"]), 2)
        self.assertGreater(names["best"]["step_s"], 0)


if __name__ == "__main__":
    unittest.main()
