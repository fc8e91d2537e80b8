"""What a tag of a run may be: a short word, so that it can be searched for and shown in a table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedrep.errors import InvalidInputError

MOST_TAGS, LONGEST_TAG = 16, 40
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/+-]*")


def checked_tags(tags: Sequence[str]) -> list[str]:
    """Each once, in alphabetical order."""
    for tag in tags:
        if len(tag) > LONGEST_TAG or not _TAG.fullmatch(tag):
            raise InvalidInputError(
                f"{tag[: LONGEST_TAG + 1]!r} cannot be a tag: a tag is one word of at most {LONGEST_TAG} letters, digits and "
                "the signs . : / + - _, and begins with a letter or digit",
                reason="BAD_TAG",
            )
    found = sorted(set(tags))
    if len(found) > MOST_TAGS:
        raise InvalidInputError(f"a run has at most {MOST_TAGS} tags, not {len(found)}", reason="BAD_TAG")
    return found
