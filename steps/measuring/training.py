"""A small transformer and made-up data, trained with one attention or another; and how long attention takes in it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from steps.core.step import Step
from tutorial_lib import timing
from tutorial_lib.problem import Problem
from tutorial_lib.reference import sdpa

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # q, k, v -> o, under a causal mask


@dataclass(frozen=True)
class Size:
    """Of the model and of what it is trained on; every number of the data is one of ``vocabulary`` tokens."""

    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    seq_len: int = 512
    batch: int = 16
    vocabulary: int = 64
    surprises: float = 0.25  # share of tokens that are drawn at random
    learning_rate: float = 1e-3

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def floor(self) -> float:
        """The least loss, nats a token: of who knows the rule behind the data."""
        other = self.surprises / self.vocabulary
        expected = 1 - self.surprises + other
        return -expected * math.log(expected) - (self.vocabulary - 1) * other * math.log(other)


def made_up(size: Size, chance: torch.Generator) -> torch.Tensor:
    """Sequences [batch, seq_len + 1]: a token follows by a rule from the one two before it, or is drawn at random.

    The rule is the same for all; to use it a model must attend to the token in front of the last one.
    """
    n = size.vocabulary
    tokens = torch.randint(n, (size.batch, size.seq_len + 1), generator=chance)
    surprising = torch.rand(tokens.shape, generator=chance) < size.surprises
    for i in range(2, size.seq_len + 1):
        expected = (5 * tokens[:, i - 2] + 1) % n
        tokens[:, i] = torch.where(surprising[:, i], tokens[:, i], expected)
    return tokens


class Layer(nn.Module):
    """Attention with grouped heads, and a perceptron, each added to what comes in."""

    def __init__(self, size: Size, attention: Attention):
        super().__init__()
        self.size, self.attention, width = size, attention, size.width
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.inwards = nn.Linear(width, (size.heads + 2 * size.kv_heads) * size.head_dim, bias=False)
        self.outwards = nn.Linear(width, width, bias=False)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s = self.size
        heads = self.inwards(self.norms[0](x)).unflatten(-1, (-1, s.head_dim)).transpose(1, 2)
        q, k, v = (part.contiguous() for part in heads.split((s.heads, s.kv_heads, s.kv_heads), 1))
        x = x + self.outwards(self.attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norms[1](x))


class Decoder(nn.Module):
    """Tokens [batch, seq_len] -> scores of the next token [batch, seq_len, vocabulary]."""

    def __init__(self, size: Size, attention: Attention):
        super().__init__()
        self.token, self.place = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.seq_len, size.width)
        self.layers = nn.Sequential(*(Layer(size, attention) for _ in range(size.layers)))
        self.end = nn.Sequential(nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary, bias=False))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.end(self.layers(self.token(tokens) + self.place(places)))


def losses(
    attention: Attention, size: Size, count: int, seed: int, device: str, tell: Callable[[int], object] = lambda n: None
) -> list[float]:
    """The loss of every step of a training from scratch, nats a token; seed: of the weights and of the data."""
    torch.manual_seed(seed)
    model, chance = Decoder(size, attention).to(device), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.learning_rate)
    found = []
    for n in range(count):
        tokens = made_up(size, chance).to(device)
        with torch.autocast(device, torch.bfloat16):
            scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
        tell(n)
    return [loss.item() for loss in found]


def by_steps(forward: Step, backward: Step) -> Attention:
    """Attention that these two steps compute, with its gradients."""

    class BySteps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            o, lse = forward.attention(q, k, v, True, return_lse=True)
            ctx.save_for_backward(q, k, v, o, lse)
            return o

        @staticmethod
        def backward(ctx, do):
            return backward.gradients(*ctx.saved_tensors, do.contiguous(), True)

    return BySteps.apply


def by_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as PyTorch computes it."""
    return sdpa(q, k, v, True, q.shape[-1] ** -0.5)


def milliseconds(contenders: dict[str, Attention], problem: Problem, rounds: int) -> dict[str, list[float]]:
    """Of attention with its gradients, eager, in every round: contenders in turn, rested, as ``timing`` has it."""
    dtype = getattr(torch, problem.dtype)

    def tensor(heads: int, seq_len: int) -> torch.Tensor:
        return torch.randn(problem.batch, heads, seq_len, problem.head_dim, dtype=dtype, device="cuda")

    inputs = [tensor(heads, problem.seq_len_kv) for heads in (problem.heads, problem.kv_heads, problem.kv_heads)]
    leaves, do = [x.requires_grad_() for x in inputs], tensor(problem.heads, problem.seq_len_q)
    calls = {
        name: lambda i, attention=attention: torch.autograd.grad(attention(*leaves), leaves, do)
        for name, attention in contenders.items()
    }
    plans = {name: timing.plan_sample(call) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            found[name].append(timing.take_sample(calls[name], plans[name]).milliseconds)
    return found
