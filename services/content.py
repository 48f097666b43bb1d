"""What makes two submissions of one turn id the same turn."""

import hashlib
import json
from dataclasses import asdict, replace

from engine.core.ids import pack_ids
from services.drafts import ChatDraft, IdsDraft, TextDraft, TurnDraft


def digest_content(draft: TurnDraft) -> bytes:
    """SHA-256 of all that the client asked for, names aside: equal for equal requests, and never empty.

    Taken from the request and not from its ids, since a chat is rendered differently once its turn is in the history.
    A seed that the server chooses is no part of it: a repeated turn has the first one's.
    """
    rest = replace(draft, session_id=None, turn_id=None, input=None)
    head = json.dumps([type(draft.input).__name__, asdict(rest)], sort_keys=True)
    digest = hashlib.sha256(head.encode())
    digest.update(b"\0")
    match draft.input:
        case IdsDraft():
            digest.update(pack_ids(draft.input.token_ids))
        case TextDraft():
            digest.update(draft.input.text.encode())
        case ChatDraft():
            said = [[message.role, message.content] for message in draft.input.messages]
            digest.update(json.dumps(said).encode())
        case None:
            pass
    return digest.digest()
