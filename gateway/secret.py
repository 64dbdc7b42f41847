"""The secret of the keyed hash that makes a tenant out of a credential (R14.1)."""

import os
import secrets
from pathlib import Path

from gateway.settings import Settings, SettingsError

FILE_NAME = "palimpsest.secret"


def load_secret(settings: Settings) -> bytes:
    """The secret: `PALIMPSEST_SECRET`, or what was made at first start beside the SQLite file, mode 0600.

    Whoever loses it can no longer match credentials to the tenants in the store. Raises SettingsError if the file
    can neither be read nor made.
    """
    if settings.secret is not None:
        return settings.secret.get_secret_value().encode()
    path = settings.store.path.parent / FILE_NAME
    try:
        return _read_or_make(path)
    except OSError as error:
        raise SettingsError(
            f"the secret {path} can neither be read nor made ({error.strerror}): "
            "make its directory writable or set PALIMPSEST_SECRET"
        ) from error


def _read_or_make(path: Path) -> bytes:
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(path)
    secret = path.read_bytes().strip()
    if not secret:
        raise SettingsError(f"the secret {path} is empty: put back the old one, or remove the file to start anew")
    return secret


def _make(path: Path) -> None:
    """Write the file whole under another name, then link it: of several workers one wins, and none reads half."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        # os.open and not Path.touch: the mode must hold from the first byte on.
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink(missing_ok=True)
