#!/usr/bin/env python3
"""Speed of PyTorch's causal attention on one GPU, by its flash kernel and by cuDNN's: a JSON line for each
backend, shape and direction, or exit status 77 and a sentence. FLOPs as `tessera bench gpu` counts them: 2 T^2 D
for each head and sequence forward, 5 T^2 D backward. Medians of batches between two events."""
import argparse
import json
import statistics
import sys

BACKENDS = {'flash': 'FLASH_ATTENTION', 'cudnn': 'CUDNN_ATTENTION'}
# sequences, positions, heads, key and value heads, size: those of `tessera bench gpu`
SHAPES = ((16, 1024, 12, 12, 64), (4, 4096, 12, 12, 64), (4, 2048, 32, 8, 128))


def backend(torch, name):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel(getattr(SDPBackend, BACKENDS[name]))


def seconds(torch, run, rounds=7, runs=5):
    """Of one run, by the device's clock."""
    times = []
    for _ in range(rounds + 1):  # the first warms up
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(runs):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000 / runs)
    return statistics.median(times[1:])


def measure(torch, name, shape):
    """Seconds forward and backward."""
    from torch.nn.functional import scaled_dot_product_attention as attention
    sequences, positions, heads, kv_heads, size = shape
    # Heads lie inside positions, as in a model.
    q, k, v = (torch.randn(sequences, positions, count, size, device='cuda', dtype=torch.bfloat16)
               .transpose(1, 2).requires_grad_() for count in (heads, kv_heads, kv_heads))
    options = {'is_causal': True}
    if kv_heads != heads:
        options['enable_gqa'] = True
    with backend(torch, name):
        y = attention(q, k, v, **options)
        dy = torch.randn_like(y)
        forward = seconds(torch, lambda: attention(q, k, v, **options))
        backward = seconds(torch, lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))
    return forward, backward


def faster(torch, shape):
    """The backend that is faster, forward and backward together; None where neither runs."""
    times = {}
    for name in BACKENDS:
        try:
            times[name] = sum(measure(torch, name, shape))
        except RuntimeError as error:
            print(f'{name}: {error}', file=sys.stderr)
    return min(times, key=times.get) if times else None


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        import torch
    except ImportError:
        print(f'there is no torch in {sys.executable}')
        sys.exit(77)
    if not torch.cuda.is_available():
        print(f'torch {torch.__version__} finds no device of CUDA')
        sys.exit(77)
    for shape in SHAPES:
        sequences, positions, heads, kv_heads, size = shape
        text = f'{sequences} x {positions}, {heads}{f"/{kv_heads}" if kv_heads != heads else ""} x {size}'
        product = sequences * heads * positions * positions * size
        for name in BACKENDS:
            line = {'peer': 'torch', 'version': torch.__version__, 'name': name, 'shape': text}
            try:
                forward, backward = measure(torch, name, shape)
                line |= {'forward_flops_per_s': 2 * product / forward,
                         'backward_flops_per_s': 5 * product / backward}
            except RuntimeError as error:
                line['error'] = str(error).splitlines()[0]
            print(json.dumps(line), flush=True)


if __name__ == '__main__':
    main()
