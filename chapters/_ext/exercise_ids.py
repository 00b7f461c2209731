"""Makes the ids of exercises' bodies unique: sphinx-exercise gives the same one to all of a page."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

SHARED = "exercise-content"


class UniqueExerciseIds(SphinxTransform):
    """`exercise-content` becomes `exercise-content-1`, `-2`, ... in the order of the page."""

    default_priority = 900

    def apply(self, **kwargs: object) -> None:
        """An id that stands on a page twice leads nowhere, and screen readers stumble over it."""
        bodies = [section for section in self.document.findall(nodes.section) if section["ids"] == [SHARED]]
        for count, body in enumerate(bodies, start=1):
            body["ids"] = [f"{SHARED}-{count}"]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_transform(UniqueExerciseIds)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
