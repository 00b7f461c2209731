"""What a hub model is called: `ORG/NAME`, with a revision or one of its GGUF files if need be."""

import re
from dataclasses import dataclass

DEFAULT_REVISION = "main"

_PATTERN = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)"
    r"(@(?P<revision>[\w.+-][\w.+/-]*?))?"
    r"(:(?P<quantization>\w+)|/(?P<file>[^\s/][^\s]*\.gguf))?"
)


@dataclass(frozen=True)
class HubId:
    """`repo` is ORG/NAME; `revision` a branch, a tag or a commit; `file` a GGUF file's path within the repository, or
    `quantization` what its name says ("Q4_K_M").
    """

    repo: str
    revision: str = DEFAULT_REVISION
    file: str | None = None
    quantization: str | None = None

    @property
    def wants_gguf(self) -> bool:
        """Whether one GGUF file is meant, and not the model as a directory."""
        return self.file is not None or self.quantization is not None

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        file = f":{self.quantization}" if self.quantization else f"/{self.file}" if self.file else ""
        return f"{self.repo}{revision}{file}"


def parse_hub_id(text: str) -> HubId | None:
    """ORG/NAME, ORG/NAME@REVISION, and either with `/file.gguf` or `:Q4_K_M` behind it; None if it is none of these.

    "models/file.gguf" is a file that is not there, not a repository of that name.
    """
    match = _PATTERN.fullmatch(text)
    if match is None or match["repo"].endswith(".gguf") or ".." in text.split("/"):
        return None
    return HubId(match["repo"], match["revision"] or DEFAULT_REVISION, match["file"], match["quantization"])
