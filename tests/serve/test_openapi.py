"""Requests generated from the OpenAPI document: no failure of the server, no reply beside the document."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi import checks

from jevify.serve.openapi import document
from serving import server_of

pytestmark = pytest.mark.cpu

schema = schemathesis.openapi.from_dict(document())
load_all_checks()


@pytest.fixture(scope="module")
def url():
    with server_of() as (address, _):
        yield address


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_generated_request_is_answered_as_documented(case, url):
    case.call_and_validate(
        base_url=url,
        # What a schema cannot say, such as that an option's ids must differ to the model, is refused all the same.
        excluded_checks=[checks.positive_data_acceptance],
    )
