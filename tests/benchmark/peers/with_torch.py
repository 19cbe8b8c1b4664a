#!/usr/bin/env python3
"""Trains with PyTorch, beside gating_benchmark and training_benchmark: as users
would write it, in index form, eager or by torch.compile.

    tests/benchmark/peers/with_torch.py layer/eager training/bfloat16/compiled

layer/MODE           a Mixture-of-Experts layer forward and backward: S 512,
                     E 128, M 512, H 2048, top-2, float32
training/TYPE/MODE   steps with Adam: 2 + 2 layers, M 256, H 1024, 4 heads,
                     V 8000, 16 experts in every other layer, 32 sentences of 32
                     tokens a side; bfloat16 by autocast
"""

import math
import os

import timing
import torch
from torch import nn
from torch.nn import functional as F


def parameter(*dims):
    return nn.Parameter(torch.randn(*dims) * dims[-2] ** -0.5)


class Experts(nn.Module):
    """Top-2 of E experts with capacity 2 S / E: tokens are gathered into
    [E, C, M] by index, for two batched products, and gathered back."""

    def __init__(self, experts, width, hidden):
        super().__init__()
        self.gate = parameter(width, experts)
        self.up = parameter(experts, width, hidden)
        self.down = parameter(experts, hidden, width)
        self.balance = None

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        (count, width), experts = x.shape, self.gate.shape[1]
        capacity = math.ceil(2 * count / experts)
        gates = F.softmax((x @ self.gate).float(), 1)
        weight, chosen = gates.topk(2, 1)
        weight = weight / weight.sum(1, keepdim=True)
        # All first choices, then all second ones: in that order they get slots.
        chosen = torch.cat([chosen[:, 0], chosen[:, 1]])
        weight = torch.cat([weight[:, 0], weight[:, 1]])
        ordered, order = torch.sort(chosen, stable=True)
        per_expert = torch.zeros(experts, dtype=torch.long).scatter_add(
            0, chosen, torch.ones_like(chosen))
        begin = torch.cumsum(per_expert, 0) - per_expert
        slot = torch.empty_like(chosen).scatter(
            0, order, torch.arange(2 * count) - begin[ordered])
        kept = slot < capacity
        first = torch.zeros(experts, dtype=torch.long).scatter_add(
            0, chosen[:count], torch.ones_like(chosen[:count]))
        self.balance = (gates.mean(0) * first / count).sum() * experts
        # Where a choice has no slot: one place and one token beyond the end.
        place = torch.where(kept, chosen * capacity + slot, experts * capacity)
        token = torch.full((experts * capacity + 1,), count).scatter(
            0, place, torch.arange(count).repeat(2))
        none = x.new_zeros(1, width)
        rows = torch.cat([x, none]).index_select(0, token[:-1])
        rows = rows.view(experts, capacity, width)
        rows = torch.bmm(torch.relu(torch.bmm(rows, self.up)), self.down)
        rows = torch.cat([rows.view(-1, width), rows.new_zeros(1, width)])
        out = rows.index_select(0, place) * (weight * kept)[:, None]
        return (out[:count] + out[count:]).view(shape)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, memory, causal):
        def split(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        key, value = self.key_value(memory).chunk(2, -1)
        y = F.scaled_dot_product_attention(
            split(self.query(x)), split(key), split(value), is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width, hidden, heads, experts, decoder):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own = Attention(width, heads)
        self.other = Attention(width, heads) if decoder else None
        self.feed = Experts(experts, width, hidden) if experts else \
            nn.Sequential(nn.Linear(width, hidden, bias=False), nn.ReLU(),
                          nn.Linear(hidden, width, bias=False))

    def forward(self, x, memory=None):
        normed = self.norms[0](x)
        x = x + self.own(normed, normed, causal=memory is not None)
        if memory is not None:
            x = x + self.other(self.norms[1](x), memory, causal=False)
        return x + self.feed(self.norms[2](x))


class Transformer(nn.Module):
    def __init__(self, width=256, hidden=1024, heads=4, vocabulary=8000,
                 experts=16):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.table.weight, std=width ** -0.5)
        self.register_buffer("position", torch.randn(64, width))
        self.encoder, self.decoder = (
            nn.ModuleList(Layer(width, hidden, heads, each, decoder)
                          for each in (experts, 0))
            for decoder in (False, True))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def embed(self, ids):
        return self.table(ids) * self.table.embedding_dim ** 0.5 + \
            self.position[:ids.shape[1]]

    def forward(self, source, target, labels):
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.norms[0](memory)
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory)
        logits = F.linear(self.norms[1](x), self.table.weight)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(),
                               label_smoothing=0.1)
        return loss + 0.01 * (self.encoder[0].feed.balance +
                              self.decoder[0].feed.balance)


def layer_case(mode, seconds):
    experts = Experts(128, 512, 2048)
    run = torch.compile(experts) if mode == "compiled" else experts
    x = torch.randn(512, 512, requires_grad=True)
    dy = torch.randn(512, 512)

    def step():
        experts.zero_grad(set_to_none=True)
        x.grad = None
        y = run(x)
        torch.autograd.backward([y, experts.balance],
                                [dy, torch.tensor(0.01)])

    return {"tokens/s": 512 / timing.seconds_of(step, seconds)}


def training_case(element_type, mode, seconds):
    model = Transformer()
    run = torch.compile(model) if mode == "compiled" else model
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98),
                            eps=1e-9, fused=True)
    source, target, labels = torch.randint(4, 8000, (3, 32, 32))

    def step():
        adam.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16,
                            enabled=element_type == "bfloat16"):
            loss = run(source, target, labels)
        loss.backward()
        adam.step()

    return {"tokens/s": 32 * 32 / timing.seconds_of(step, seconds)}


def measure(case, arguments):
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR",
                          os.path.abspath(arguments.cache) + "/inductor")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    what, *rest = case.split("/")
    of = {"layer": layer_case, "training": training_case}
    return of[what](*rest, seconds=max(arguments.seconds, 1.0))


if __name__ == "__main__":
    timing.main(__doc__, measure)
