"""What a deletion takes for done."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from aiohttp import web

from elasticdl.cluster.kubernetes.apiserver import ApiRefused
from tests.contract.api_client import connected
from tests.contract.api_server import status

pytestmark = pytest.mark.contract

PATH = "/api/v1/namespaces/ns/pods/w"


@pytest.mark.parametrize(
    ("code", "uid", "refused"),
    [
        (200, "", False),
        (404, "", False),
        (404, "u", False),
        (409, "u", False),  # Another object has the name now.
        (409, "", True),
        (403, "u", True),
    ],
)
async def test_a_conflict_is_the_end_of_an_object_only_if_its_uid_was_asked_for(
    code: int, uid: str, refused: bool
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(status(code, "Conflict", "no"), status=code)

    with pytest.raises(ApiRefused, match="no") if refused else nullcontext():
        async with connected(web.delete(PATH, answer)) as api, asyncio.timeout(20.0):
            await api.delete(PATH, uid=uid)
