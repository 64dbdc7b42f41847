"""Makes again, from the store alone, the bytes that a client sent and those that its provider was sent (R4.1)."""

from __future__ import annotations

from compaction.checkpoint import from_json
from compaction.types import Checkpoint, Path
from gateway.compiled import Sent, compile_body
from gateway.conversation import ConversationReader
from gateway.wire import load_frame, read_chat_request, rebuild
from store.protocol import Store
from store.rows import StoredRequest


class NotRebuildableError(Exception):
    """The store does not hold what the bytes were made of."""


def client_body(stored: StoredRequest) -> bytes:
    """The (decoded) body as the client sent it, byte for byte."""
    return rebuild(load_frame(stored.frame), [*stored.preamble, *stored.history])


async def upstream_body(store: Store, reader: ConversationReader, stored: StoredRequest, sent: Sent) -> bytes:
    """The body as the provider received it. `sent` comes from the `request` entry or, if it has one, its `response`.

    Raises `NotRebuildableError` if the checkpoint that was in force is not in the log.
    """
    request = read_chat_request(client_body(stored))
    if request is None:
        raise NotRebuildableError("the recorded request is not readable")
    conversation = await reader.read(stored.tenant, request, request.model, None)
    checkpoint = None
    if sent.checkpoint_id is not None:
        checkpoint = await _checkpoint(store, conversation.path, stored.tenant, sent.checkpoint_id)
    return compile_body(conversation, checkpoint, 0, sent).body


async def _checkpoint(store: Store, path: Path, tenant: str, checkpoint_id: str) -> Checkpoint:
    for text in await store.completed_checkpoints(tenant, path):
        checkpoint = from_json(text)
        if checkpoint is not None and checkpoint.checkpoint_id == checkpoint_id:
            return checkpoint
    raise NotRebuildableError(f"checkpoint {checkpoint_id} is not in the log")
