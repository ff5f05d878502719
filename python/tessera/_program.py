"""Starting the program, its options, its errors, and Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

_HERE = Path(__file__).parent


class Error(RuntimeError):
    """The program has failed. The text is its message; exit_status is 1 (the run failed) or 2 (bad options)."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def program() -> str:
    """The program's path: TESS_PROGRAM, else the one in this package, else the one on PATH."""
    named = os.environ.get("TESS_PROGRAM")
    inside = _HERE / "bin" / "tessera"
    found = named or (str(inside) if inside.exists() else shutil.which("tessera"))
    if not found:
        raise Error("the program tessera is neither in the package nor on PATH; TESS_PROGRAM may name it", 2)
    return found


def config_path(config: Optional[os.PathLike[str] | str]) -> list[str]:
    """The configuration as it is, or, where there is no such file, the one of that name in the package, beside an
    installed program, or in the clone that it was built in (build/release/tessera)."""
    if config is None:
        return []
    text = os.fspath(config)
    above = Path(program()).resolve().parents
    for folder in (_HERE / "share/tessera/configs", above[1] / "share/tessera/configs", above[2] / "configs"):
        if not os.path.exists(text) and (folder / text).exists():
            return [str(folder / text)]
    return [text]


def option_words(options: Mapping[str, Any], prefix: str = "") -> list[str]:
    """{"batch_size": 8, "gpt": {"layers": 2}, "evaluate": False} as words of a command line. None is left out."""
    words: list[str] = []
    for key, value in options.items():
        name = prefix + key.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, Mapping):
            words += option_words(value, name + ".")
        elif isinstance(value, bool):
            words.append(f"--{name}={'on' if value else 'off'}")
        elif isinstance(value, (list, tuple)):
            words.append(f"--{name}=" + ",".join(str(one) for one in value))
        else:
            words.append(f"--{name}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return words


def _message(lines: Sequence[str]) -> str:
    """The program's own sentence, without its name; else all that it wrote."""
    for line in reversed(lines):
        if "error: " in line:
            return line.split("error: ", 1)[1]
    return "\n".join(lines) or "the program failed without a message"


def run_program(words: Iterable[str], while_running: Optional[Callable[[], None]] = None,
                on_line: Optional[Callable[[str], None]] = None) -> str:
    """Run `tessera WORDS...`; return what it printed. on_line gets each line as it comes; while_running is called some
    four times a second. Ctrl-C, and an exception of either, ends the program as Ctrl-C in a terminal does: ranks end,
    a run keeps what it has written. Error where the exit status is not 0."""
    # A session of its own: in a terminal Ctrl-C would otherwise reach it twice, in a notebook not at all.
    child = subprocess.Popen([program(), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    printed: list[str] = []
    warned: list[str] = []

    def read_errors() -> None:
        assert child.stderr is not None
        warned.extend(line.rstrip("\n") for line in child.stderr)

    lines: list[str] = []

    def read_output() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            printed.append(line)
            lines.append(line.rstrip("\n"))

    readers = [threading.Thread(target=read, daemon=True) for read in (read_errors, read_output)]
    for reader in readers:
        reader.start()

    def pass_on() -> None:
        while lines:
            line = lines.pop(0)
            if on_line:
                on_line(line)
        if while_running:
            while_running()

    try:
        while True:
            try:
                child.wait(timeout=0.25)
                break
            except subprocess.TimeoutExpired:
                pass_on()
        readers[1].join()
        pass_on()
    except BaseException:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        raise
    finally:
        for reader in readers:
            reader.join()
        for pipe in (child.stdout, child.stderr):
            assert pipe is not None
            pipe.close()
    if child.returncode == 130:
        raise KeyboardInterrupt
    if child.returncode != 0:
        raise Error(_message(warned), child.returncode)
    return "".join(printed)
