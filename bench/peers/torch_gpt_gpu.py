#!/usr/bin/env python3
"""Training speed of PyTorch on a GPT-2 on one GPU: one JSON line, or exit status 77 and a sentence.

What it is beside: a run of Tessera in bf16, which keeps f32 masters, f32 gradients and f32 moments and
multiplies in bf16. That is autocast to bf16 over f32 parameters here, the usual way to train GPT-2 in
PyTorch; --params bf16 has no masters, does less, and is another computation. Attention is
scaled_dot_product_attention by its flash kernel or by cuDNN's, whichever is faster for the shape, AdamW the fused one, gradients are clipped to
norm 1, TF32 is on for what autocast leaves in f32, the vocabulary is padded to a multiple of 128, and
everything is compiled: --compile whole takes the model as one graph, blocks each block (and the head with
the loss) by itself, which compiles in seconds for any depth. Tokens lie on the device before it begins."""
import argparse
import json
import sys
import time

import torch_attention_gpu

# layers, width, heads
SHAPES = {'124m': (12, 768, 12), '350m': (24, 1024, 16), '774m': (36, 1280, 20),
          '1558m': (48, 1600, 25)}
HEADER_BYTES = 1024  # of llm.c's shards


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('--model', choices=SHAPES, default='124m')
    p.add_argument('--length', type=int, default=1024, help='tokens of a sequence')
    p.add_argument('--batch', type=int, default=64, help='sequences of a step')
    p.add_argument('--vocabulary', type=int, default=50304, help='with padding')
    p.add_argument('--steps', type=int, default=20)
    p.add_argument('--warmup', type=int, default=5, help='steps before, with the compilation')
    p.add_argument('--params', choices=('f32', 'bf16'), default='f32')
    p.add_argument('--compile', choices=('whole', 'blocks', 'off'), default='blocks')
    p.add_argument('--attention', choices=('best', 'flash', 'cudnn'), default='best')
    p.add_argument('--tokens', required=True, help='.bin shard of GPT-2 tokens, or bytes of text')
    p.add_argument('--device', choices=('cuda', 'cpu'), default='cuda',
                   help='cpu, without compilation: whether this program works')
    p.add_argument('--layers', type=int, help='another number than the model has')
    p.add_argument('--width', type=int)
    p.add_argument('--heads', type=int)
    return p.parse_args()


def skip(why):
    print(why)
    sys.exit(77)


def load_tokens(args, torch):
    with open(args.tokens, 'rb') as file:
        data = bytearray(file.read())
    if args.tokens.endswith('.bin'):
        words = torch.frombuffer(data, dtype=torch.int16, offset=HEADER_BYTES)
        tokens = words.to(torch.int64) & 0xffff
    else:
        tokens = torch.frombuffer(data, dtype=torch.uint8).to(torch.int64)
    if int(tokens.max()) >= args.vocabulary:
        skip(f'the tokens of {args.tokens} do not fit a vocabulary of {args.vocabulary}')
    return tokens.to(args.device)


def build(args):
    import torch_models
    layers, width, heads = (given or usual for given, usual in
                            zip((args.layers, args.width, args.heads), SHAPES[args.model]))
    model = torch_models.Text('gpt2', layers, width, heads, 4 * width, args.vocabulary,
                              args.length).to(args.device)
    if args.params == 'bf16':
        model = model.bfloat16()
    if args.compile == 'blocks':
        model.compile_parts()
    elif args.compile == 'whole':
        model.compile()
    return model


class Trainer:
    def __init__(self, args, torch):
        self.args, self.torch = args, torch
        self.tokens = load_tokens(args, torch)
        self.random = torch.Generator(args.device).manual_seed(1)
        self.model = build(args)
        fused = {'fused': True} if args.device == 'cuda' else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-4, betas=(0.9, 0.95),
                                           weight_decay=0.1, **fused)

    def step(self):
        torch, args = self.torch, self.args
        first = torch.randint(len(self.tokens) - args.length - 1, (args.batch, 1),
                              generator=self.random, device=args.device)
        window = self.tokens[first + torch.arange(args.length + 1, device=args.device)]
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.params == 'f32'):
            loss = self.model(window[:, :-1], window[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss


def run(args, torch):
    cuda = args.device == 'cuda'

    def wait():
        if cuda:
            torch.cuda.synchronize()

    begin = time.perf_counter()
    trainer = Trainer(args, torch)
    for _ in range(args.warmup):
        trainer.step()
    wait()
    warm = time.perf_counter()
    for _ in range(args.steps):
        loss = trainer.step()
    wait()
    step_s = (time.perf_counter() - warm) / args.steps
    print(json.dumps({
        'peer': 'torch', 'version': torch.__version__, 'model': args.model, 'batch': args.batch,
        'length': args.length, 'vocabulary': args.vocabulary, 'params': args.params,
        'compile': args.compile, 'attention': args.attention, 'device': torch.cuda.get_device_name() if cuda else 'cpu',
        'parameters': sum(p.numel() for p in trainer.model.parameters()),
        'tokens_per_s': args.batch * args.length / step_s, 'step_s': step_s,
        'warmup_s': warm - begin, 'loss': float(loss),
        'memory_bytes': torch.cuda.max_memory_reserved() if cuda else None}), flush=True)


def main():
    args = parse()
    try:
        import torch
    except ImportError:
        skip(f'there is no torch in {sys.executable}')
    if args.device == 'cpu':
        if not hasattr(torch.nn.functional, 'scaled_dot_product_attention'):
            skip(f'torch {torch.__version__} has no scaled_dot_product_attention: 2.0 or newer is wanted')
        args.compile = 'off'
        run(args, torch)
        return
    if not torch.cuda.is_available():
        skip(f'torch {torch.__version__} finds no device of CUDA')
    if not hasattr(torch.nn.Module, 'compile'):
        skip(f'torch {torch.__version__} has no Module.compile: 2.2 or newer is wanted')
    torch.set_float32_matmul_precision('high')
    if args.attention == 'best':
        _, width, heads = SHAPES[args.model]
        args.attention = torch_attention_gpu.faster(
            torch, (args.batch, args.length, heads, heads, width // heads)) or 'flash'
    with torch_attention_gpu.backend(torch, args.attention):
        run(args, torch)


if __name__ == '__main__':
    main()
