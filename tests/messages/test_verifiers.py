"""Callbacks beside the libraries of others: `standardwebhooks`, of the authors of the standard, and `svix`, of a peer."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from standardwebhooks import webhooks as standard
from standardwebhooks.exceptions import WebhookVerificationError
from svix import webhooks as svix

from muster.callbacks import verified
from muster_server import _engines
from muster_server.systems.messages.topics import new_secret
from tests.faults.hooks import Called, hooks
from tests.messages.test_docs import headers
from tests.waiting import until

BODY = '{"order": 7, "for": "Ünal"}'
VERIFIERS = [standard.Webhook, svix.Webhook]


async def called(secrets: Sequence[str]) -> Called:
    """A callback signed by each of these secrets."""
    with hooks() as server:
        client = _engines.CallbackClient(b'{"allowed": ["127.0.0.0/8"]}')
        client.submit([(1, "order-7", f"{server.url}/", "application/json", BODY.encode(), list(secrets), 5.0)])
        await until(lambda: server.calls)
        client.close()
        return server.calls[0]


@pytest.mark.parametrize("verifier", VERIFIERS)
async def test_a_callback_is_verified(verifier: Any) -> None:
    secret = new_secret()
    call = await called([secret])
    verifier(secret).verify(call.body, headers(call))
    old = headers(call) | {"webhook-timestamp": str(call.timestamp - 301)}
    for other, body, said in (
        (new_secret(), call.body, headers(call)),
        (secret, call.body + b" ", headers(call)),
        (secret, call.body, old),
        (secret, call.body, headers(call) | {"webhook-id": "order-8"}),
    ):
        with pytest.raises(WebhookVerificationError):
            verifier(other).verify(body, said)


@pytest.mark.parametrize("verifier", VERIFIERS)
async def test_a_callback_is_verified_by_either_secret_while_a_topic_has_two(verifier: Any) -> None:
    secrets = [new_secret(), new_secret()]
    call = await called(secrets)
    for secret in secrets:
        verifier(secret).verify(call.body, headers(call))


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_what_they_sign_is_verified_here(verifier: Any) -> None:
    secret, now = new_secret(), datetime.now(tz=UTC)
    for moment, wanted in ((now, True), (now - timedelta(minutes=6), False)):
        said = {
            "webhook-id": "order-7",
            "webhook-timestamp": str(int(moment.timestamp())),
            "webhook-signature": verifier(secret).sign("order-7", moment, BODY),
        }
        assert verified(secret, said, BODY.encode()) is wanted
        assert not verified(new_secret(), said, BODY.encode())
