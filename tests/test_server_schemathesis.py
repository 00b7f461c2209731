"""The OpenAPI document against the server, by a tool that knows neither: whatever it makes of the one, the other holds.

Its own rule that a body which fits the schema must be accepted is left out: which models there are, which ids, and how
much room, no schema says.
"""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from serving import running, tiny_llm

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


OPERATIONS = [
    "GET /engine",
    "GET /health",
    "GET /health/ready",
    "GET /metrics",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "POST /detokenize",
    "POST /tokenize",
    "POST /v1/chat/completions",
    "POST /v1/completions",
]


@pytest.fixture(scope="module")
def operations(tmp_path_factory):
    with running(tiny_llm(tmp_path_factory)) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        yield {found.ok().label: found.ok() for found in schema.get_all_operations()}


def test_all_that_there_is_is_tried(operations) -> None:
    assert sorted(operations) == OPERATIONS


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_server_does_what_its_document_says(operations, name, mode) -> None:
    """Bodies and parameters that fit the document, and some that do not."""
    tried = 0

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operations[name].as_strategy(generation_mode=mode))
    def try_it(case) -> None:
        nonlocal tried
        tried += 1
        case.call_and_validate(checks=CHECKS, timeout=60)

    try:
        try_it()
    except Unsatisfiable:  # what has no parameters cannot be asked wrongly
        assert mode is GenerationMode.NEGATIVE
        assert name.startswith("GET")
    else:
        assert tried
