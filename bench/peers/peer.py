"""PyTorch as a peer: which of them there is, and processes of it that take turns with Tessera."""
import json
import os
import select
import signal
import subprocess
import tempfile
import time

DEBIAN = '/usr/bin/python3'
LIBRARIES = '/usr/lib/x86_64-linux-gnu'


def environment(python, threads=1):
    """tcmalloc for both: their allocator returns memory after every step. Debian's PyTorch needs a
    BLAS whose threads do not wait for one lock, and to be told of AVX-512."""
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), OMP_PROC_BIND='false',
               LD_PRELOAD=f'{LIBRARIES}/libtcmalloc_minimal.so.4')
    if python == DEBIAN:
        env['LD_LIBRARY_PATH'] = f'{LIBRARIES}/openblas-openmp'
        with open('/proc/cpuinfo', encoding='utf-8') as file:
            if ' avx512f ' in file.read():
                env['ATEN_CPU_CAPABILITY'] = 'avx512'
    return env


def version(python):
    """Of the PyTorch that a Python has; None: it has none."""
    done = subprocess.run([python, '-c', 'import torch; print(torch.__version__)'],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


class PeerError(Exception):
    pass


class LateError(PeerError):
    """It did not answer in time."""


class Torch:
    """One run of torch_train.py, which waits while others have their turns."""

    def __init__(self, python, threads, *options):
        self.command = [python, 'bench/peers/torch_train.py', '--threads', str(threads),
                        *map(str, options)]
        self.env = environment(python, threads)
        self.process = None
        self.until = None  # time.monotonic() at which an answer that is missing is waited for no longer

    def start(self):
        """What it says when it is warm."""
        self.errors = tempfile.TemporaryFile('w+')
        self.process = subprocess.Popen(self.command, env=self.env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        start_new_session=True)
        return self.answer()

    def answer(self):
        if self.until and not select.select([self.process.stdout], [], [],
                                            max(self.until - time.monotonic(), 0))[0]:
            os.killpg(self.process.pid, signal.SIGKILL)  # its ranks too
            self.process.wait()
            self.process = None
            raise LateError('no answer in time')
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.process = None
            self.errors.seek(0)
            raise PeerError(f'{" ".join(self.command)}\n{self.errors.read()[-3000:]}')
        return json.loads(line)

    def step_s(self, steps):
        self.process.stdin.write(f'{steps}\n')
        self.process.stdin.flush()
        return self.answer()['step_s']

    def stop(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.errors.close()
            self.process = None
