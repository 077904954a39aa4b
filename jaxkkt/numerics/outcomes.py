"""How things end: codes that arrays hold, each with a sentence that names the remedy."""

from enum import IntEnum


class Outcome(IntEnum):
    """Members are written `NAME = code, "sentence"`; `describe` gives the sentence.

    What has one name in several of them has one code.
    """

    _sentence: str

    def __new__(cls, code: int, sentence: str = "") -> "Outcome":
        member = int.__new__(cls, code)
        member._value_ = code
        member._sentence = sentence
        return member

    def describe(self) -> str:
        return self._sentence

    @classmethod
    def flags(cls, **others: int) -> dict[str, str]:
        """What a variable of such codes, and others by name, tells of them in a table."""
        codes = others | {member.name.lower(): member.value for member in cls}
        return {
            "flag_values": ", ".join(map(str, codes.values())),
            "flag_meanings": " ".join(codes),
        }
