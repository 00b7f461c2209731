"""The row kernels in C++: the numbers of the functions in PyTorch, for the shapes that a model gives them."""

import pytest
import torch
from quantized_models import FORMATS, in_format, model_in, native_config, widened
from tiny import random_ids

from minillm import model as model_module
from minillm.compiled import compile_decode
from minillm.errors import InputError
from minillm.kv_cache import KVCache
from minillm.model import Llama, rms_norm, swiglu
from minillm.native.decode_pass import NativeDecodePass
from minillm.native.rows import NativeRows
from minillm.quantization import QuantizedWeight, empty_quantized
from minillm.rope import apply_rope

pytestmark = pytest.mark.usefixtures("two_threads")

DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(scope="module")
def kernels():
    return NativeRows()


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rounded_once(got: torch.Tensor, exact: torch.Tensor) -> None:
    """`exact` is float32: what is computed in it and rounded once is off by half a step of the dtype."""
    assert got.shape == exact.shape
    assert got.is_contiguous()
    step = 2**-8 if got.dtype == torch.bfloat16 else 1e-5
    assert torch.allclose(got.float(), exact, rtol=1.01 * step, atol=1e-6)


def laid_out(numbers: torch.Tensor, format: str) -> QuantizedWeight:
    """A matrix as a model keeps it."""
    weight = empty_quantized(format, *numbers.shape)
    weight.write(0, in_format(numbers, format))
    return weight


def no_pytorch(monkeypatch, name: str) -> None:
    """Whoever asks PyTorch's function of the kernels' file fails."""

    def refuse(*_):
        raise AssertionError(f"{name} of PyTorch was asked")

    monkeypatch.setattr(f"minillm.native.rows.{name}", refuse)


@pytest.mark.parametrize("dtype", DTYPES)
class TestRmsNorm:
    @pytest.mark.parametrize("shape", [(1, 1, 16), (2, 5, 48), (1, 300, 576), (3, 64), (2, 3, 7, 32)])
    def test_is_the_norm(self, kernels, monkeypatch, dtype, shape):
        no_pytorch(monkeypatch, "rms_norm")
        x, weight = randn(*shape, dtype=dtype), randn(shape[-1], dtype=dtype, seed=1)
        assert_rounded_once(kernels.rms_norm(x, weight, 1e-5), rms_norm(x.float(), weight.float(), 1e-5))

    def test_rows_that_do_not_lie_side_by_side(self, kernels, monkeypatch, dtype):
        no_pytorch(monkeypatch, "rms_norm")
        x, weight = randn(2, 5, 4, 32, dtype=dtype).transpose(1, 2)[:, 1:], randn(32, dtype=dtype, seed=1)
        assert_rounded_once(kernels.rms_norm(x, weight, 1e-5), rms_norm(x.float(), weight.float(), 1e-5))

    def test_a_weight_whose_numbers_are_not_neighbours(self, kernels, monkeypatch, dtype):
        no_pytorch(monkeypatch, "rms_norm")
        x, weight = randn(5, 32, dtype=dtype), randn(32, 2, dtype=dtype, seed=1)[:, 0]
        assert_rounded_once(kernels.rms_norm(x, weight, 1e-5), rms_norm(x.float(), weight.float(), 1e-5))

    def test_other_widths_and_columns_are_left_to_pytorch(self, kernels, dtype):
        for x in (randn(2, 5, 40, dtype=dtype), randn(32, 5, dtype=dtype).T, randn(0, 32, dtype=dtype)):
            weight = randn(x.shape[-1], dtype=dtype, seed=1)
            assert torch.equal(kernels.rms_norm(x, weight, 1e-5), rms_norm(x, weight, 1e-5))

    def test_what_is_not_a_number_stays_in_its_row(self, kernels, dtype):
        x = randn(4, 64, dtype=dtype)
        x[1, 7], x[2, 9] = torch.nan, torch.inf
        got = kernels.rms_norm(x, torch.ones(64, dtype=dtype), 1e-5)
        assert bool(got[1].isnan().all())
        assert bool(got[2, 9].isnan())
        assert bool(got[[0, 3]].isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
class TestRope:
    @pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
    @pytest.mark.parametrize("batch", [1, 2])
    def test_is_the_rotation(self, kernels, monkeypatch, dtype, head_dim, batch):
        no_pytorch(monkeypatch, "apply_rope")
        qkv = randn(batch, 7, 5 * head_dim, dtype=dtype)
        x = qkv.view(batch, 7, 5, head_dim).transpose(1, 2)[:, :4]  # as the model cuts it: not in order
        angles = randn(batch, 1, 7, head_dim // 2, seed=1)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        exact = apply_rope(x.float(), cos.float(), sin.float())
        # Differences of products may be near 0: what half a step means is then a matter of the products.
        assert torch.allclose(kernels.apply_rope(x, cos, sin).float(), exact, rtol=2**-8, atol=1e-6)

    def test_other_widths_are_left_to_pytorch(self, kernels, dtype):
        x, angles = randn(1, 2, 5, 48, dtype=dtype), randn(1, 1, 5, 24, seed=1)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        assert torch.equal(kernels.apply_rope(x, cos, sin), apply_rope(x, cos, sin))


@pytest.mark.parametrize("dtype", DTYPES)
class TestSwiglu:
    @pytest.mark.parametrize("shape", [(1, 1, 32), (2, 5, 96), (1, 300, 3072), (7, 64)])
    def test_is_the_gate(self, kernels, monkeypatch, dtype, shape):
        no_pytorch(monkeypatch, "swiglu")
        gate_up = 20 * randn(*shape, dtype=dtype)
        assert_rounded_once(kernels.swiglu(gate_up), swiglu(gate_up.float()))

    def test_gates_that_are_far_open_or_shut(self, kernels, dtype):
        gate = torch.tensor([0.0, -0.0, 1e30, -1e30, 88.0, -88.0, -200.0, torch.nan] * 2)
        got = kernels.swiglu(torch.cat([gate, torch.ones(16)]).to(dtype))
        wanted = torch.tensor([0.0, 0.0, 1e30, 0.0, 88.0, 0.0, 0.0, torch.nan] * 2).to(dtype)
        assert torch.allclose(got.float(), wanted.float(), rtol=2**-8, atol=1e-6, equal_nan=True)

    def test_what_is_no_multiple_or_not_in_order_is_left_to_pytorch(self, kernels, dtype):
        for gate_up in (randn(3, 48, dtype=dtype), randn(64, 3, dtype=dtype).T, randn(0, 64, dtype=dtype)):
            assert torch.equal(kernels.swiglu(gate_up), swiglu(gate_up))


@pytest.mark.parametrize("format", FORMATS)
class TestDequantized:
    @pytest.mark.parametrize("columns", [32, 96, 576])
    def test_are_the_numbers_that_the_codes_stand_for(self, kernels, format, columns):
        weight = laid_out(randn(40, columns), format)
        for some in (weight, weight.rows(slice(3, 17)), weight.rows(slice(0, 0))):
            exact = some.dequantized(torch.float32)
            assert torch.allclose(kernels.dequantized(some, torch.float32), exact, rtol=1e-6, atol=1e-6)
            assert torch.allclose(kernels.dequantized(some, torch.bfloat16).float(), exact, rtol=2**-8, atol=1e-6)

    def test_codes_and_scales_that_lie_apart_are_left_to_pytorch(self, kernels, format):
        weight = in_format(randn(40, 96), format)
        exact = weight.dequantized(torch.float32)
        assert torch.allclose(kernels.dequantized(weight, torch.float32), exact, rtol=1e-6, atol=1e-6)
        if format != "int8":
            model = model_in(format, native_config())
            model.lm_head.weight = in_format(randn(*model.lm_head.weight.shape), format)
            with pytest.raises(InputError, match="as `empty_quantized` lays them out"):
                NativeDecodePass(model)

    def test_rounds_as_pytorch_does(self, kernels, format):
        weight = laid_out(randn(64, 576), format)
        got = kernels.dequantized(weight, torch.bfloat16)
        assert torch.equal(got, kernels.dequantized(weight, torch.float32).bfloat16())


def test_codes_that_lie_in_columns_are_left_to_pytorch(kernels):
    weight = laid_out(randn(64, 64), "int8")
    turned = QuantizedWeight("int8", weight.codes.t(), weight.scale)
    assert torch.equal(kernels.dequantized(turned, torch.float32), turned.dequantized())


@pytest.mark.parametrize("format", [None, *FORMATS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prompt_through_them_gives_the_hidden_states_of_the_model(monkeypatch, format, dtype):
    """Both round in bfloat16, the kernels less often: what counts is how far each is from the model in float32."""
    model = model_in(format, native_config(head_dim=32), dtype=dtype)
    exact = widened(model)
    ids = random_ids(37, batch=2)

    def hidden(model: Llama) -> torch.Tensor:
        return model(ids, KVCache(model.config, 40, batch_size=2, dtype=model.dtype)).float()

    wanted = hidden(exact)
    plain = float((hidden(model) - wanted).square().mean().sqrt())
    assert compile_decode(model, lambda sentence: pytest.fail(sentence))
    model.prompt_pass = None  # on a processor that has tiles, it would take the prompt
    for name in ("rms_norm", "swiglu", "apply_rope"):
        monkeypatch.setattr(model_module, name, lambda *_: pytest.fail("a compiled model asks PyTorch"))
    shapes = []
    whole = NativeRows.dequantized
    monkeypatch.setattr(NativeRows, "dequantized", lambda *given: shapes.append(given[1].shape) or whole(*given))
    got = float((hidden(model) - wanted).square().mean().sqrt())
    assert got < (1.1 * plain if dtype == torch.bfloat16 else 1e-5)
    matrices = [(320, 64), (64, 192), (192, 64), (64, 96)]
    assert shapes == ([] if format is None else matrices * model.config.num_hidden_layers)
