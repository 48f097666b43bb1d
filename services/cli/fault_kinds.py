"""What `tenure plant` can break. Light: names and texts."""

KINDS: dict[str, str] = {
    "leak": "a page that nobody holds any more: it is taken out of circulation, and the server goes on",
    "double-owner": "a page that two hold: the server halts",
    "forward-sleeps": "forwards that do not end for --seconds",
    "forward-raises": "forwards that raise an error",
    "forward-nan": "forwards whose numbers are not numbers",
    "forward-bad-token": "forwards that choose a token that the model does not have",
    "executor-dies": "the thread that runs the forwards dies: the server halts",
    "loop-blocked": "something keeps the event loop busy for --seconds",
    "interpreter-held": "something keeps the whole interpreter from running for --seconds",
    "none": "nothing: no forward goes wrong on purpose any more",
}
"""Names as on the command line, and what each does."""
TIMED = ("forward-sleeps", "loop-blocked", "interpreter-held")
"""Those that have a length."""
ENDING = ("double-owner", "executor-dies")
"""Those that the server does not survive."""
