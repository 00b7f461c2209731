"""Exercise: what it is called, what it stands for in the engine, where it is set and explained, and its hints."""

from dataclasses import dataclass

CHAPTERS = {
    1: "chapters/01-the-journey.md",
    2: "chapters/02-text-becomes-tokens.md",
    3: "chapters/03-inside-the-transformer.md",
    4: "chapters/04-prefill.md",
    5: "chapters/05-the-kv-cache.md",
    6: "chapters/06-the-decode-loop.md",
    7: "chapters/07-choosing-the-next-token.md",
    8: "chapters/08-back-to-text.md",
    9: "chapters/09-two-resources.md",
    10: "chapters/10-will-it-fit.md",
    11: "chapters/11-bringing-up-the-box.md",
    12: "chapters/12-batching.md",
    13: "chapters/13-paged-attention.md",
    14: "chapters/14-quantization.md",
    17: "chapters/17-serving.md",
}


@dataclass(frozen=True)
class Exercise:
    """One exercise. `name` is the stub's function; `reference` ("module:qualname") is the piece it replaces.

    `hints` go from a nudge to nearly the answer. `stub` is the stub's name where the reference's own says too little:
    several classes have a `forward`, and a reader's file can have but one of that name.
    """

    id: str
    title: str
    reference: str
    hints: tuple[str, ...]
    called: str = ""  # when a request calls it ("in every pass"); "": no request does
    section: str = ""  # the anchor of the chapter's section that explains it; "": the exercise's own place
    stub: str = ""  # "layer_forward" for DecoderLayer.forward; "": the reference's own name

    @property
    def chapter(self) -> int:
        """5 for 5.2."""
        return int(self.id.split(".")[0])

    @property
    def qualname(self) -> str:
        """The reference within its module: KVCache.append."""
        return self.reference.split(":")[1]

    @property
    def name(self) -> str:
        """The function's name in the stub file: `append` for `KVCache.append`."""
        return self.stub or self.qualname.split(".")[-1]

    @property
    def file_name(self) -> str:
        """The stub file: ch05.py."""
        return f"ch{self.chapter:02}.py"

    @property
    def anchor(self) -> str:
        """The label of the exercise in its chapter: ex-5-2."""
        return "ex-" + self.id.replace(".", "-")

    @property
    def chapter_path(self) -> str:
        """The chapter's source, seen from the root of the repository."""
        return CHAPTERS[self.chapter]

    @property
    def where(self) -> str:
        """Where the book explains it: chapters/05-the-kv-cache.md#the-code."""
        return f"{self.chapter_path}#{self.section or self.anchor}"
