"""examples/kv-cache: its tokenizer, and that its model gives the same bits wherever a prompt is computed."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples/kv-cache"


@pytest.fixture(scope="module", autouse=True)
def demo():
    sys.path.insert(0, str(DEMO))
    yield
    sys.path.remove(str(DEMO))


def test_the_tokenizer_gives_every_text_back():
    from tokenizer import Tokenizer

    text = "You may copy and distribute the Program. You may not copy it otherwise. " * 3
    tokenizer = Tokenizer.learn(text, 300)
    assert len(tokenizer.encode(text)) < len(text) / 2
    for each in (text, "", "tab\tand  spaces\n", "\u00e9\u4e2d\U0001f600", "0123 !?"):
        assert tokenizer.decode(tokenizer.encode(each)) == each


@pytest.fixture
def model():
    torch = pytest.importorskip("torch", reason="torch is not installed here; make demo-kv installs it for its own Python")
    from model import Model, Shape

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    yield Model(Shape(vocabulary=300, layers=2, width=128, heads=4, kv_heads=2, hidden=256)).eval()
    torch.set_num_threads(before)


def prompt(length, seed=0):
    return [(seed + 7 * at * at + at) % 300 for at in range(length)]


def prefilled(model, tokens, start=0):
    """The first token, and keys and values ``[layers, 2, tokens - start, kv_heads, head_dim]``."""
    import torch

    shape = model.shape
    made = torch.zeros(shape.layers, 2, len(tokens) - start, shape.kv_heads, shape.head_dim)

    @contextmanager
    def layer_of(number):
        yield made[number, 0], made[number, 1]

    return model.prefill(tokens, layer_of, start), made


def same(one, other):
    import torch

    return torch.equal(one.contiguous().view(torch.int32), other.contiguous().view(torch.int32))


@pytest.mark.parametrize("length", [16, 63, 64, 65, 100, 300])
def test_a_prefix_has_the_same_bits_whatever_follows(model, length):
    _, whole = prefilled(model, prompt(400))
    _, part = prefilled(model, prompt(length))
    assert same(part, whole[:, :, :length])


@pytest.mark.parametrize(("length", "start"), [(65, 16), (200, 64), (200, 80), (128, 112), (1000, 16)])
def test_a_prompt_whose_first_blocks_are_there_has_the_same_bits(model, length, start):
    first, whole = prefilled(model, prompt(length))
    again, rest = prefilled(model, prompt(length), start)
    assert again == first
    assert same(rest, whole[:, :, start:])


def test_prefill_and_decode_agree(model):
    import torch

    tokens = prompt(130)
    first, whole = prefilled(model, tokens)
    before, rest = prefilled(model, tokens[:-1])
    # Blocks in another order, as a decoder's pool may have them.
    table = list(reversed(range(10)))
    paged = torch.zeros(2, model.shape.layers, 10, 16, model.shape.kv_heads, model.shape.head_dim)
    for at in range(len(tokens) - 1):
        paged[:, :, table[at // 16], at % 16] = rest[:, :, at].transpose(0, 1)
    assert model.decode(tokens[-1], len(tokens) - 1, paged[0], paged[1], table) == first
    written = paged[:, :, table[129 // 16], 129 % 16].transpose(0, 1)
    assert torch.allclose(written, whole[:, :, 129], atol=1e-4)
