"""The client SDK: call a served chain from another process.

    async with connect("ws://127.0.0.1:8000") as client:
        async with client.call("run", audio=frames()) as call:
            async for item in call:
                ...

`connect_sync` is the same for code without an event loop.
"""

from __future__ import annotations

from chains.client.aio import Client, ClientCall, connect
from chains.client.sync import SyncCall, SyncClient, connect_sync

__all__ = ["connect", "connect_sync", "Client", "ClientCall", "SyncClient", "SyncCall"]
