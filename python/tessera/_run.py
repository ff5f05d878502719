"""Runs and their results."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

import numpy as np

from ._program import Error, config_path, option_words, run_program

Path_ = Union[str, "os.PathLike[str]"]

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
           "I8": "i1", "U8": "u1", "BOOL": "?"}


def _tensors(path: Path) -> Dict[str, np.ndarray]:
    """Tensors of a safetensors file, mapped: no byte is copied or read before it is used. bf16 as its 16 bits."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if len(mapped) < 8:
        raise Error(f"{path} is no safetensors file: it has {len(mapped)} bytes", 1)
    (size,) = struct.unpack("<Q", mapped[:8])
    if size > len(mapped) - 8:
        raise Error(f"{path}: a header of {size} bytes in a file of {len(mapped)}", 1)
    header = json.loads(mapped[8 : 8 + size])
    result: Dict[str, np.ndarray] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        if not 0 <= begin <= end <= len(mapped) - 8 - size or (end - begin) % dtype.itemsize:
            raise Error(f"{path}: tensor {name} lies outside of the file", 1)
        flat = np.frombuffer(mapped, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=8 + size + begin)
        result[name] = flat.reshape(entry["shape"])
    return result


class Run:
    """A run's folder. `final` is the result, `lines` all objects of metrics.jsonl, `steps` and `epochs` arrays of
    their fields. One that train() made without a folder of its own is removed with this object; keep() moves it."""

    def __init__(self, folder: Path_, output: str = "") -> None:
        self.folder = Path(folder)
        self.output = output
        """What the program printed."""
        self.lines: List[Dict[str, Any]] = []
        self._cleanup: Optional["weakref.finalize[..., Run]"] = None
        path = self.folder / "metrics.jsonl"
        try:
            with open(path, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith("\n"):
                        break  # is being written
                    try:
                        self.lines.append(json.loads(line))
                    except ValueError as error:
                        raise Error(f"{path}, line {number}: {error}", 1) from None
        except OSError as error:
            raise Error(f"{path}: {error.strerror}", 1) from None

    def _object(self, name: str) -> Dict[str, Any]:
        for line in reversed(self.lines):
            if name in line:
                return dict(line[name])
        return {}

    @property
    def head(self) -> Dict[str, Any]:
        """What is run, with every option."""
        return self._object("run")

    @property
    def final(self) -> Dict[str, Any]:
        """The result: hash, loss, speed, memory by kind and rank; empty where the run has not ended."""
        return self._object("final")

    def _columns(self, has: str, *, without: str = "") -> Dict[str, np.ndarray]:
        rows = [line for line in self.lines if has in line and (not without or without not in line)]
        keys = [key for key in (rows[0] if rows else {}) if isinstance(rows[0][key], (int, float, type(None)))]
        return {key: np.array([np.nan if row.get(key) is None else row[key] for row in rows]) for key in keys}

    @property
    def steps(self) -> Dict[str, np.ndarray]:
        """step, loss, samples_per_s ... of each step that was written."""
        return self._columns("loss", without="train_loss")

    @property
    def epochs(self) -> Dict[str, np.ndarray]:
        """epoch, train_loss, val_loss ... of each epoch."""
        return self._columns("train_loss")

    def weights(self) -> Dict[str, np.ndarray]:
        """The weights at the end, by name, mapped from the file without a copy; bf16 as its 16 bits (uint16)."""
        return _tensors(self.folder / "weights.safetensors")

    def keep(self, folder: Path_) -> "Run":
        """Move the folder, so that it stays."""
        if self._cleanup:
            self._cleanup.detach()
            self._cleanup = None
        shutil.move(os.fspath(self.folder), os.fspath(folder))
        self.folder = Path(folder)
        return self

    def __repr__(self) -> str:
        head, final = self.head, self.final
        text = f"{head.get('model')} under {head.get('strategy')} on {head.get('ranks')} ranks"
        return f"<tessera.Run {self.folder}: {text}, {'loss %.4f' % final['loss'] if final else 'not ended'}>"


def _progress(total: Callable[[], int]) -> Callable[[Dict[str, Any]], None]:
    """One line that is written over, in a terminal and in a notebook."""

    def show(line: Mapping[str, Any]) -> None:
        if "final" in line:
            sys.stderr.write("\n")
        elif "step" in line and "loss" in line and line["loss"] is not None:
            share = min(1.0, line["step"] / max(1, total()))
            bar = "#" * int(30 * share)
            speed = line.get("samples_per_s")
            sys.stderr.write(f"\r[{bar:<30}] step {line['step']}/{total()}, loss {line['loss']:.4f}"
                             + (f", {speed:,.0f} samples/s  " if speed else "  "))
        sys.stderr.flush()

    return show


def _is_shown() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def train(config: Optional[Path_] = None, *, run: Optional[Path_] = None,
          on_line: Optional[Callable[[Dict[str, Any]], None]] = None, progress: Optional[bool] = None,
          **options: Any) -> Run:
    """Train as `tessera train CONFIG --option value ...` does, and wait for the end. `run` is the run's folder; without
    it a temporary one. on_line gets each object of metrics.jsonl as it is written; an exception in it ends the run.
    progress: show a line of progress; by default in terminals and notebooks. Error has the program's message."""
    temporary = tempfile.mkdtemp(prefix="tessera-") if run is None else None
    folder = Path(temporary or os.fspath(run))  # type: ignore[arg-type]
    path, seen, rest, total = folder / "metrics.jsonl", 0, b"", 0
    show = _progress(lambda: total) if (_is_shown() if progress is None else progress) else None
    start = path.stat().st_size if options.get("resume") and path.exists() else 0

    def follow() -> None:
        nonlocal seen, rest, total
        if not (on_line or show) or not path.exists():
            return
        with open(path, "rb") as file:
            file.seek(max(seen, start))
            rest += file.read()
            seen = file.tell()
        while b"\n" in rest:
            text, rest = rest.split(b"\n", 1)
            line = json.loads(text)
            total = line.get("run", {}).get("steps", total)
            if show:
                show(line)
            if on_line:
                on_line(line)

    try:
        output = run_program(["train", *config_path(config), *option_words(options), f"--run={folder}"], follow)
        result = Run(folder, output)
    except BaseException:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    if temporary:
        result._cleanup = weakref.finalize(result, shutil.rmtree, temporary, True)
    return result


def load(folder: Path_) -> Run:
    """A run that is there, or goes on."""
    return Run(folder)


def _json_of(command: str, config: Optional[Path_], options: Mapping[str, Any]) -> Dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        path = os.path.join(folder, "result.json")
        run_program([command, *config_path(config), *option_words(options), f"--json={path}"])
        with open(path, encoding="utf-8") as file:
            result: Dict[str, Any] = json.load(file)
    return result


def compare(config: Optional[Path_] = None, **options: Any) -> Dict[str, Any]:
    """`tessera compare CONFIG ...`: the object of its --json, with "runs"."""
    return _json_of("compare", config, options)


def plan(config: Optional[Path_] = None, **options: Any) -> Dict[str, Any]:
    """`tessera plan CONFIG ...`: the object of its --json, with "layouts", best first, and "rejected"."""
    return _json_of("plan", config, options)


def generate(run: Union[Run, Path_], prompt: str, **options: Any) -> str:
    """`tessera generate RUN --prompt TEXT ...`: the text that it prints, the prompt included."""
    folder = run.folder if isinstance(run, Run) else run
    return run_program(["generate", os.fspath(folder), f"--prompt={prompt}", *option_words(options)])
