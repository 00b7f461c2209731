"""Fixtures shared by the tests: the real SmolLM2, fetched on first use and loaded once."""

import pytest

from minillm.cli import wait_politely

wait_politely()


def pytest_collection_modifyitems(items):
    """Write into the report which tests ran on the real model, so that CI can tell if they did."""
    for item in items:
        if item.get_closest_marker("real_model"):
            item.user_properties.append(("real_model", "yes"))


@pytest.fixture(scope="session")
def model_dir():
    """The default model's directory; a fresh machine fetches it here (93 MB)."""
    from minillm.loading import DEFAULT_MODEL, resolve

    return resolve(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def llm(model_dir):
    """The default model on the CPU in float32, the dtype in which its tokens are compared."""
    from minillm import LLM

    return LLM(model_dir, device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def tokenizer(model_dir):
    """The real SmolLM2 tokenizer."""
    from minillm.tokenizer import Tokenizer

    return Tokenizer.from_directory(model_dir)


@pytest.fixture(scope="session")
def oracle_tokenizer(model_dir):
    """What `transformers` makes of the same directory."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)
