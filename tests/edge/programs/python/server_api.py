"""The routes of Centrifugo's server API that the SDKs' own tests call, in front of a hub: `server_api.py URL PORT`.

For `scripts/sdks.sh` alone. Each request becomes one command over WebSocket.
"""

import json
import sys
from typing import Any

import aiohttp
from aiohttp import web


async def answered(url: str, command: dict[str, Any]) -> dict[str, Any]:
    """The reply to one command of a new connection."""
    async with aiohttp.ClientSession() as session, session.ws_connect(url, compress=0) as stream:
        commands = [{"id": 1, "connect": {}}, {"id": 2, **command}]
        await stream.send_str("\n".join(map(json.dumps, commands)))
        while True:
            for line in (await stream.receive_str()).split("\n"):
                reply: dict[str, Any] = json.loads(line)
                if reply.get("id") == 2:
                    return reply


def application(url: str) -> web.Application:
    """Its routes."""

    async def serve(request: web.Request) -> web.Response:
        method, body = request.match_info["method"], await request.json()
        if method == "info":
            return web.json_response({"result": {"nodes": []}})
        if method not in {"publish", "history"}:
            return web.json_response({"error": {"code": 104, "message": "method not found"}})
        reply = await answered(url, {method: body})
        if method == "publish" and "publish" in reply:
            reply = await answered(url, {"history": {"channel": body["channel"], "limit": 0}})
            reply = {"publish": {key: reply["history"].get(key) for key in ("offset", "epoch")}}
        return web.json_response({"result": reply[method]} if method in reply else {"error": reply["error"]})

    made = web.Application()
    made.router.add_post("/api/{method}", serve)
    return made


if __name__ == "__main__":
    web.run_app(application(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), print=None)
