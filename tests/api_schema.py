"""Whether an answer of the admin API is what its table of routes says."""

import httpx
from jsonschema import Draft202012Validator

from sluicegate.admin.routes import JSON, ROUTES, pattern


def as_described(answer: httpx.Response) -> httpx.Response:
    """The answer, once it was compared with the schema that its row has."""
    request = answer.request
    method = "GET" if request.method == "HEAD" else request.method
    row = next((one for one in ROUTES if one.method == method and pattern(one.path).fullmatch(request.url.path)), None)
    if answer.status_code == 200 and request.method != "HEAD":
        assert row is not None, f"{method} {request.url.path} is in no row"
        if row.response is not None:
            assert row.media == JSON == answer.headers["content-type"]
            Draft202012Validator(row.response).validate(answer.json())
    return answer
