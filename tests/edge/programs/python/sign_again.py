"""Signs the tokens in an SDK's own tests by a secret of Muster: `sign_again.py SECRET_FILE FILE...`, for `scripts/sdks.sh`.

The tests sign by the word "secret", without an end and perhaps without a user. Muster demands 32 bytes and both claims,
so each token gets them, with all rights in all rooms. Nothing else in the files changes.
"""

import re
import sys
import time
from pathlib import Path
from typing import Any, Final

import jwt

THEIRS: Final = "secret"
USER: Final = "42"
RIGHTS: Final = ["read", "publish", "command", "members", "history"]
TOKEN: Final = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+")


def main(secret_file: str, *files: str) -> None:
    """Rewrite the files."""
    secret = Path(secret_file).read_bytes().splitlines()[0].strip()
    claims = {"sub": USER, "exp": int(time.time()) + 86_400, "cap": {"*": RIGHTS}}

    def again(found: re.Match[str]) -> str:
        try:
            theirs: dict[str, Any] = jwt.decode(found[0], THEIRS, algorithms=["HS256"])
        except jwt.InvalidTokenError:
            return found[0]
        return jwt.encode(claims | theirs, secret, algorithm="HS256")

    for file in map(Path, files):
        text = TOKEN.sub(again, file.read_text())
        text = text.replace(f'hmac_secret = "{THEIRS}"', f"hmac_secret = {secret.decode()!r}")
        text = text.replace('payload = {"sub": user}', f'payload = {claims!r} | {{"sub": user}}')
        file.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
