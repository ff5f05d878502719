"""Tessera from Python: training, comparing and planning by the program, results as dictionaries and arrays.

    import tessera
    run = tessera.train("labs/fashion_mlp.yaml", strategy="fsdp", ranks=4, steps=100)
    run.final["hash"], run.steps["loss"][-1], run.weights()["fc1.weight"].shape

Options have the names of the command line, with "_" for "-": batch_size=64, gpt={"layers": 4}, fsdp={"keep_last": 2},
evaluate=False. The training itself runs in the program's own processes.
"""

from ._program import Error, run_program
from ._run import Run, compare, generate, load, plan, train

__all__ = ["Error", "Run", "compare", "generate", "load", "plan", "run_program", "train"]
