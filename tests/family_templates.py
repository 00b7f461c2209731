"""Chat templates of the Llama family (chat_templates/*.jinja), and conversations to render with them.

Each is written for these tests, after the public structure of the template that it is named for: the same control
tokens, the same helpers and tricks (namespaces, slices, filters, dates, JSON), shorter instructions. ChatML is what
SmolLM2 and Yi use, Zephyr TinyLlama.
"""

from pathlib import Path

DIRECTORY = Path(__file__).parent / "chat_templates"
FAMILIES = {file.stem: file.read_text(encoding="utf-8") for file in sorted(DIRECTORY.glob("*.jinja"))}

# The tokens that the templates write, as the models' tokenizers declare them.
SPECIAL_TOKENS = [
    *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|EOT|>"),
    *("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
    *("<｜end▁of▁sentence｜>", "<s>", "</s>"),
]
ORDINARY_ADDED_TOKENS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<｜User｜>", "<｜Assistant｜>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "wetter",
            "description": "The weather <here> & now, in °C",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "a \"town\" or 'city'"},
                    "days": {"type": "integer"},
                },
                "required": ["place"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
    },
]
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "wetter", "arguments": {"place": "Köln <1>", "days": 2}},
}
CHATS = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": " Be brief. /no_think "}, {"role": "user", "content": "  two\nlines & <b>é😀</b> "}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhello"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "bye"},
    ],
    [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "21 °C", "tool_call_id": "abcdefghi", "name": "wetter"},
        {"role": "tool", "content": '{"wind": 3}', "tool_call_id": "abcdefghi"},
        {"role": "assistant", "content": "21 °C.", "reasoning_content": "read it"},
    ],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "assistant", "tool_calls": [CALL, CALL]}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "user", "content": "b"},
    ],
]
