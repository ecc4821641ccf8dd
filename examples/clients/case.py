"""The example of docs/http.md with the generated client for Python: `case.py URL KEY`. Prints one line of JSON."""

import json
import sys

# begin of the example
from muster_http import AuthenticatedClient
from muster_http.api.likes import likes_batch, likes_likers
from muster_http.api.messages import messages_send, messages_show
from muster_http.api.rooms import rooms_messages, rooms_publish
from muster_http.models import (
    Accepted,
    Change,
    JsonMessage,
    Last,
    Likers,
    LikesBatch,
    Message,
    Positioned,
    Post,
    Problem,
)

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])

said = rooms_publish.sync("sports:final", client=client, body=JsonMessage("goal"), idempotency_key="goal-1")
assert isinstance(said, Positioned)

likers: list[str] = []
after: str | None = ""
while after is not None:
    page = likes_likers.sync("share", "1000", client=client, limit=2, after=after)
    assert isinstance(page, Likers)
    likers += page.users
    after = page.next_
# end of the example

last = rooms_messages.sync("sports:final", client=client, history=10)
assert isinstance(last, Last)
again = rooms_publish.sync("sports:final", client=client, body=JsonMessage("goal"), idempotency_key="goal-1")
assert again == said
done = likes_batch.sync(client=client, body=[Change(item="share:1000", user=str(user)) for user in range(5)])
assert isinstance(done, LikesBatch)
likers, after = [], ""
while after is not None:
    page = likes_likers.sync("share", "1000", client=client, limit=2, after=after)
    assert isinstance(page, Likers)
    likers += page.users
    after = page.next_
sent = messages_send.sync("orders", client=client, body=Post(data={"order": 7}, in_ms=3_600_000, id="python"))
assert isinstance(sent, Accepted)
shown = messages_show.sync("orders", "python", client=client)
assert isinstance(shown, Message)
refused = rooms_messages.sync("x" * 300, client=client)
assert isinstance(refused, Problem)
print(
    json.dumps(
        {
            "history": [message.data for message in last.messages],
            "likers": likers,
            "state": shown.state,
            "data": shown.data,
            "problem": refused.code,
        }
    )
)
