"""Strings that text handling gets wrong: many scripts, emoji of several code points, digits, code, white
space, controls.
"""

from itertools import pairwise

LANGUAGES = [
    "The capital of France is Paris.",
    "Les élèves naïfs ont mangé des œufs à Noël.",
    "Größenwahn, Straße, ÄÖÜ äöü ß ẞ",
    "¿Dónde está el niño? ¡Aquí!",
    "Zażółć gęślą jaźń",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "Съешь же ещё этих мягких французских булок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "人工智能正在改变世界。",
    "繁體中文測試，標點符號「引號」",
    "吾輩は猫である。名前はまだ無い。カタカナ ﾊﾝｶｸ",
    "키스의 고유조건은 입술끼리 만나야 하고",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "नमस्ते दुनिया क्षत्रिय",
    "আমি বাংলায় গান গাই",
    "வணக்கம் உலகம்",
    "مرحبا بالعالم، كيف الحال؟",
    "שלום עולם, מה שלומך?",
    "سلام دنیا ۱۲۳۴",
    "Xin chào thế giới, tiếng Việt có dấu",
    "Türkçe: İstanbul'da ığdır ılık",
    "ქართული ენა",
    "Հայերեն լեզու",
    "አማርኛ ቋንቋ",
    "ខ្មែរ ភាសា",
    "မြန်မာဘာသာ",
    "བོད་སྐད་",
    "ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛",
    "𠜎𠜱𠝹𠱓 rare ideographs",
]

EMOJI = [
    "😀",
    "😀😃😄",
    "👋🏽 waving",
    "👩‍👩‍👧‍👦 family",
    "🏳️‍🌈🏴‍☠️",
    "🇫🇷🇩🇪🇯🇵 flags",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿 England",
    "❤️‍🔥 ❤ ❤️",
    "👨🏿‍🚀👩🏻‍💻🧑🏼‍🤝‍🧑🏾",
    "1️⃣2️⃣#️⃣",
    "text🙂text",
    "🫠🫡🪿",
    "☃︎ ☃️",
]

COMBINING = [
    "e\u0301 é",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "\u0915\u094d\u0937",
    "\u1100\u1161\u11a8",
    "\u200d\u200c\u2060\ufeff",
    "\u202eright to left\u202c",
    "A\u030a Å \u212b",
    "ﬁ ﬃ ｆｕｌｌ",
]

NUMBERS = [
    "0",
    "1234567890",
    "3.14159 2,71828 1e-10 0xDEADBEEF",
    "2024-02-29T23:59:60Z",
    "١٢٣ ४५६ ๗๘๙ ①②③ Ⅷ ½ ²",
    "9" * 100,
    "a1b2c3",
    "1st 2nd 3rd 100% $5.00 €7",
]

CODE = [
    "def f(x):\n    return x ** 2  # square\n",
    'if (a && b) { printf("%d\\n", *p++); }',
    "SELECT * FROM t WHERE a='b';--",
    "<html><body class='x'>&amp;</body></html>",
    '{"key": [1, 2.5, null, true, "\\u00e9"]}',
    "\tfor i in range(10):\n\t\tpass\r\n",
    "https://example.org/a?b=c&d=%20#e",
    "λ x → ∀y ∈ ℝ: x² ≥ 0 ∧ ¬(y ≠ y)",
    "```python\nprint('hi')\n```",
    "a_b-c.d/e\\f|g~h`i^j",
    "I'm you're we've he'll she'd it's DON'T o'clock ''s",
    "${jndi:ldap://x} {{ 7*7 }} {% raw %}",
]

WHITE_SPACE = [
    "",
    " ",
    "  ",
    "   leading and trailing   ",
    "\n",
    "\n\n\n",
    "\r\n\r\n",
    "\t\t\t",
    " \n \n ",
    "a  b   c    d" + " " * 50 + "e",
    "\u00a0no-break\u3000ideographic\u2009thin\u2028line\u2029para\u0085nel",
    "\v\f",
    " \u00a0 ",
]

# SmolLM2's vocabulary can spell these controls; for six of the C0 controls it has no byte token (below).
CONTROLS = ["\x00", "a\x00b", "\x07\x08", "\x1b[31mred\x1b[0m", "\x7f", "\x80\x9f", "\ufffd", "\ufffe\uffff"]

# SmolLM2 has no token for the bytes 04 06 13 14 16 1D, nor for F1 F2, which begin U+40000 to U+BFFFF.
UNSPELLABLE = ["\x04", "a\x06b", "\x13", "\x14", "\x16", "\x1d", "\U00040000", "x\U0008ffff"]

PUNCTUATION = [
    "...---***!!!???",
    "“quotes” ‘single’ «guillemets» „low“",
    "— – - ‐ ‑ ―",
    "()[]{}<>",
    "<|not_a_token|> <|im_ end|> < |im_end|>",
    "▁▂▃ Ġ Ċ Â â",
    "<0x0A> <unk> [INST]",
]

LONG = ["word " * 2000, "a" * 3000, "字" * 1500, "😀" * 500, "ab\n" * 1000]

SAMPLES = [*LANGUAGES, *EMOJI, *COMBINING, *NUMBERS, *CODE, *WHITE_SPACE, *CONTROLS, *PUNCTUATION, *LONG]

# Every neighbouring pair too: what happens at a seam depends on what is on either side of it.
PAIRS = [left + right for left, right in pairwise(SAMPLES) if len(left) + len(right) < 500] + [
    f"{left} {right}" for left, right in zip(SAMPLES, SAMPLES[7:], strict=False) if len(left) + len(right) < 500
]

ALL_SAMPLES = SAMPLES + PAIRS
