"""One page of the open sessions, in the order of their names, and where the next page begins."""

import base64
import binascii
from collections.abc import Sequence

from engine.core.ids import SessionId
from engine.core.snapshot import SessionState
from services.errors import invalid_field


def list_page(
    sessions: Sequence[SessionState], page_size: int, page_token: str
) -> tuple[tuple[SessionState, ...], str]:
    """The page, and the token of the next one, "" when there is none. Raises CallError for a token that is not ours.

    A token holds the last name that was shown, so what opens and closes meanwhile shifts nothing.
    """
    shown = _read_token(page_token)
    left = sorted(
        (state for state in sessions if shown is None or state.session_id > shown), key=lambda state: state.session_id
    )
    page = tuple(left[:page_size])
    return page, _write_token(page[-1].session_id) if len(left) > len(page) else ""


def _write_token(session_id: SessionId) -> str:
    return base64.urlsafe_b64encode(session_id.encode()).decode()


def _read_token(token: str) -> str | None:
    if not token:
        return None
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError):
        raise invalid_field("page_token", "is none that this server gave out") from None
