#!/usr/bin/python3
"""Time of gloo's all-reduce of f32 under PyTorch, in place: one JSON line for each size.

Taken as `tessera bench comm` takes it, with fewer samples: calls back to back, each timed on rank 0,
the median printed. torch_reduce.py RANKS BYTES..."""
import json
import os
import socket
import statistics
import sys
import time


WARM_UP = 2


def samples(size):
    """Some seconds at gloo's 1 GB/s."""
    return max(5, min(200, (512 << 20) // size))


def run(rank, ranks, port, sizes):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), GLOO_SOCKET_IFNAME='lo')
    dist.init_process_group('gloo', rank=rank, world_size=ranks)
    for size in sizes:
        data = torch.zeros(size // 4)
        seconds = []
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(WARM_UP + samples(size)):
            dist.all_reduce(data)
            now = time.perf_counter()
            seconds.append(now - begin)
            begin = now
        if rank == 0:
            print(json.dumps({'peer': 'gloo', 'ranks': ranks, 'bytes': size,
                              'seconds': statistics.median(seconds[WARM_UP:])}), flush=True)
    dist.barrier()
    os._exit(0)  # gloo of PyTorch 1.13 may hang when it is taken down in order


def main():
    import multiprocessing
    ranks, sizes = int(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context('spawn')
    processes = [context.Process(target=run, args=(r, ranks, port, sizes)) for r in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))


if __name__ == '__main__':
    main()
