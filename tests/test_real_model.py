"""SmolLM2-135M against transformers on the same converted weights, and the engine's invariants on real text."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from minillm import SamplingParams
from minillm.kv_cache import KVCache, NoCache
from minillm.prefill import prefill

pytestmark = pytest.mark.real_model

# Float32 sums in another order: the two engines' logits (which reach 30) differ by some 1e-4.
LOGIT_BOUND = 1e-3

TEXT = (
    "The first practical electric telegraph lines were built beside railways, because trains needed to be announced "
    "faster than they travelled. A clerk at each station listened to the clicks of a sounder and wrote down letters "
    "as they came, one after the other, and soon could do so without thinking. Messages were charged by the word, so "
    "people learned to leave out every word that was not needed. In 1858 a cable was laid across the Atlantic; it "
    "carried ninety-eight words from Queen Victoria in sixteen hours, and failed within three weeks. The engineers "
    "who laid the next one measured resistance, capacitance and leakage at every mile: they had understood that a "
    "cable is not a wire but a long, slow bucket that has to be filled before anything comes out at the other end. "
    "Nobody had expected that; the mathematics had to be found first, and then believed.\n\n"
    "def fill(bucket, rate=0.25):\n    while bucket.level < bucket.size:\n        bucket.level += rate\n"
)

PROMPTS = {
    "English": "The capital of France is",
    "story": "Once upon a time, in a village by the sea,",
    "code": "def fibonacci(n):\n    ",
    "digits": "1, 2, 4, 8, 16, 32,",
    "Chinese": "今天天气很好,",
    "emoji": "I love pizza 🍕 and",
    "whitespace": "\n\n  - item one\n  - item two\n",
    "chat": [{"role": "user", "content": "Why is the sky blue?"}],
}


@pytest.fixture(scope="module")
def oracle_model(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


def test_logits_over_200_tokens_are_those_of_transformers(llm, oracle_model):
    ids = torch.tensor([llm.tokenizer.encode(TEXT)[:200]])
    assert ids.shape == (1, 200)
    with torch.inference_mode():
        expected = oracle_model(ids).logits[0]
        ours = llm.model.logits(llm.model(ids, KVCache(llm.config, 200)))[0]
    worst = (ours - expected).abs().max().item()
    assert worst < LOGIT_BOUND, f"logits differ by up to {worst}"


@pytest.mark.parametrize("kind", PROMPTS)
def test_greedy_tokens_are_those_of_transformers_wherever_the_best_two_are_apart(llm, oracle_model, kind):
    """We generate; transformers then reads our 64 tokens in one pass and says, before each, which it would choose."""
    generation = llm.start(PROMPTS[kind], SamplingParams(max_tokens=64, ignore_eos=True))
    for _ in generation:
        pass
    chosen = list(generation.completion().token_ids)
    assert len(chosen) == 64
    with torch.inference_mode():
        read = torch.tensor([[*generation.prompt_ids, *chosen]])
        logits = oracle_model(read).logits[0, len(generation.prompt_ids) - 1 : -1]  # [64, V]
    best_two = logits.topk(2).values  # [64, 2]
    clear = best_two[:, 0] - best_two[:, 1] > LOGIT_BOUND  # [64]
    assert clear.sum() > 55, "too few clear choices for this to mean anything"
    wrong = [t for t in range(64) if clear[t] and int(logits[t].argmax()) != chosen[t]]
    assert not wrong, f"{kind}: transformers chooses otherwise at tokens {wrong}"


def test_the_capital_of_france(llm):
    assert llm.generate("The capital of France is", SamplingParams(max_tokens=8)).text.startswith(" Paris.")


def test_the_sky_is_blue(llm):
    question = [{"role": "user", "content": "Why is the sky blue? Answer in two sentences."}]
    answer = llm.chat(question, SamplingParams(max_tokens=24)).text
    assert answer.startswith("The sky blue is a result of the Earth's atmosphere scattering sunlight")


def test_a_chat_ends_by_itself(llm):
    answer = llm.chat([{"role": "user", "content": "Say only the word yes."}], SamplingParams(max_tokens=200))
    assert answer.finish_reason == "stop"
    assert "<|im_end|>" not in answer.text
    assert answer.token_ids[-1] in llm.config.eos_token_ids


@pytest.mark.parametrize("chunk_size", [1, 16, 33, 64])
def test_prefill_in_chunks_gives_the_same_logits(llm, chunk_size):
    ids = llm.tokenizer.encode(TEXT)[:96]
    whole = prefill(llm.model, ids, KVCache(llm.config, 96))
    chunked = prefill(llm.model, ids, KVCache(llm.config, 96), chunk_size=chunk_size)
    assert (whole - chunked).abs().max().item() < LOGIT_BOUND


def test_without_a_cache_the_same_text(llm):
    params = SamplingParams(max_tokens=12)
    running = llm.start("The three primary colours are", params, use_cache=False)
    assert isinstance(running.cache, NoCache)
    text = "".join(piece.text for piece in running)
    assert text == llm.generate("The three primary colours are", params).text


@pytest.mark.parametrize(
    "prompt", ["Write flags: 🇩🇪🇯🇵🇧🇷 and families: 👨‍👩‍👧‍👦", "今天天气很好,我们", "naïve café — “quotes”"]
)
def test_the_stream_is_the_decoded_text(llm, prompt):
    params = SamplingParams(max_tokens=40, temperature=1.5, seed=11)
    completion = llm.generate(prompt, params)
    assert "".join(llm.stream(prompt, params)) == completion.text
    assert llm.tokenizer.decode(completion.token_ids) == completion.text


def test_bfloat16_holds_half_the_bytes_and_agrees_with_float32_where_it_is_sure(llm, model_dir):
    from minillm import LLM

    half = LLM(model_dir, device="cpu", dtype="bfloat16")
    assert half.model.nbytes * 2 == llm.model.nbytes
    ids = llm.tokenizer.encode("The capital of France is")
    logits = prefill(half.model, ids, half.new_cache(16))
    exact = prefill(llm.model, ids, llm.new_cache(16))
    assert logits.argmax() == exact.argmax()
    assert (logits - exact).abs().max() < 1.0
