"""The models that PyTorch trains beside Tessera, as Tessera's configurations describe them."""
import functools
import math

import torch
from torch import nn
from torch.nn import functional

# style, layers, width, heads, inner width of an MLP, vocabulary padded to what products like
TEXT = {'gpt-21m': ('gpt2', 12, 384, 6, 1536, 256),
        'gpt-124m': ('gpt2', 12, 768, 12, 3072, 50304),
        'llama-160m': ('llama', 12, 768, 12, 3072, 32000)}


# ---- images ------------------------------------------------------------------------------------

def mlp(width=1024):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width),
                         nn.ReLU(), nn.Linear(width, 10))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(),
                         nn.Linear(128, 10))


def conv(inputs, outputs, window, stride=1):
    return nn.Conv2d(inputs, outputs, window, stride, window // 2, bias=False)


class WrnBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1, self.conv2 = conv(inputs, outputs, 3, stride), conv(outputs, outputs, 3)
        self.shortcut = (conv(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs
                         else None)

    def forward(self, x):
        a = functional.relu(self.norm1(x))
        b = functional.relu(self.norm2(self.conv1(a)))
        return self.conv2(b) + (x if self.shortcut is None else self.shortcut(a))


def wrn():
    """Depth 10 and width 1, as fashion_wrn.yaml has them."""
    return nn.Sequential(conv(1, 16, 3), WrnBlock(16, 16, 1), WrnBlock(16, 32, 2),
                         WrnBlock(32, 64, 2), nn.BatchNorm2d(64), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


# ---- text --------------------------------------------------------------------------------------

@functools.lru_cache
def causal_mask(length, dtype):
    return torch.full((length, length), float('-inf'), dtype=dtype).triu(1)


def causal(q, k, v):
    """Attention over [B, H, T, D]."""
    if hasattr(functional, 'scaled_dot_product_attention'):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    # PyTorch 1.13: one multiply-add with the mask, a softmax and a product are the fastest on CPUs.
    rows, heads, length, size = q.shape
    q, k, v = (x.reshape(rows * heads, length, size) for x in (q, k, v))
    mask = causal_mask(length, q.dtype).expand(rows * heads, length, length)
    score = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=1 / math.sqrt(size))
    return torch.bmm(score.softmax(-1).to(v.dtype), v).view(rows, heads, length, size)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return (wide * self.weight).to(x.dtype)


def norm(style, width):
    if style == 'gpt2':
        return nn.LayerNorm(width)
    return nn.RMSNorm(width, 1e-5) if hasattr(nn, 'RMSNorm') else RmsNorm(width)


def rotate(x, rotary):
    cos, sin = (part.to(x.dtype) for part in rotary)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Block(nn.Module):
    def __init__(self, style, width, heads, inner):
        super().__init__()
        self.heads, self.llama = heads, style == 'llama'
        bias = not self.llama
        self.norm1, self.norm2 = norm(style, width), norm(style, width)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.join = nn.Linear(width, width, bias=bias)
        self.widen = nn.Linear(width, (2 if self.llama else 1) * inner, bias=bias)
        self.narrow = nn.Linear(inner, width, bias=bias)

    def forward(self, x, rotary):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads) \
            .permute(2, 0, 3, 1, 4).unbind(0)
        if self.llama:
            q, k = rotate(q, rotary), rotate(k, rotary)
        x = x + self.join(causal(q, k, v).transpose(1, 2).reshape(rows, length, width))
        hidden = self.widen(self.norm2(x))
        if self.llama:
            gate, up = hidden.chunk(2, -1)
            return x + self.narrow(functional.silu(gate) * up)
        return x + self.narrow(functional.gelu(hidden, approximate='tanh'))


class Head(nn.Module):
    """The logits and their loss, which compile into one kernel beside the product."""

    def __init__(self, style, width, vocabulary):
        super().__init__()
        self.norm = norm(style, width)
        self.linear = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x, labels):
        logits = self.linear(self.norm(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]).float(),
                                        labels.reshape(-1))


class Text(nn.Module):
    """The loss of a GPT-2, whose head is its embedding, or of a Llama, whose is not."""

    def __init__(self, style, layers, width, heads, inner, vocabulary, length):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(length, width) if style == 'gpt2' else None
        self.blocks = nn.ModuleList(Block(style, width, heads, inner) for _ in range(layers))
        self.head = Head(style, width, vocabulary)
        if style == 'gpt2':
            self.head.linear.weight = self.token.weight
        rate = 10000 ** (-torch.arange(0, width // heads, 2) / (width // heads))
        angle = torch.arange(length)[:, None] * rate
        self.register_buffer('rotary', torch.stack((angle.cos(), angle.sin())))
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, tokens, labels):
        x = self.token(tokens)
        if self.place is not None:
            x = x + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, self.rotary)
        return self.head(x, labels)

    def compile_parts(self):
        """Each block, all of which share what is compiled, and the head: seconds for any depth."""
        for block in self.blocks:
            block.compile()
        self.head.compile()
