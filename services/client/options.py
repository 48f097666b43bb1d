"""What a caller gives → fields of a message, or an error that names the option."""

from typing import Never

from google.protobuf.message import Message as ProtoMessage


class OptionError(ValueError):
    """An option has a value for which the protocol has no room."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"{option}: {problem}")
        self.option = option
        self.problem = problem


def set_field(message: ProtoMessage, field: str, value: object, option: str | None = None) -> None:
    """Sets a plain field, or leaves it out when `value` is None. `option`: what the caller knows it by.

    Raises OptionError for a value that the protocol has no room for, and TypeError for one of another kind.
    """
    if value is None:
        return
    try:
        setattr(message, field, value)
    except (ValueError, TypeError) as error:
        refuse(option or field, value, error)


def refuse(option: str, value: object, error: ValueError | TypeError) -> Never:
    """Raises what protobuf has against a value as an error that names the option."""
    if isinstance(error, TypeError):
        raise TypeError(f"{option}: {value!r} is of the wrong type") from error
    if isinstance(error, UnicodeError):
        raise OptionError(option, "has characters that are no text: it can not be sent as UTF-8") from error
    raise OptionError(option, f"{value} is out of range") from error


def require_name(option: str, name: str | None) -> None:
    """Raises OptionError for an empty name, which the protocol would take for none."""
    if name == "":
        raise OptionError(option, "is empty; leave it out to have one chosen")
