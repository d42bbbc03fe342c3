"""Who may ask."""

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers

from jevify.errors import InputError, SettingError
from jevify.serve.refusals import Refusal


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine to itself alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Checks the key of a request; without keys, only loopback may ask.

    Raises SettingError at construction when `host` is beyond loopback and there is no key, InputError for a blank key.
    """

    def __init__(self, keys: Sequence[str], host: str) -> None:
        if not keys and not is_loopback(host):
            raise SettingError(f"--host {host} can be reached from other machines: give --api-key-file F")
        if any(not key or not key.isascii() or any(map(str.isspace, key)) for key in keys):
            raise InputError("an API key must be ASCII characters without spaces")
        self._digests = [_digest(key.encode()) for key in keys]

    def check(self, headers: Headers) -> None:
        """Raise Refusal 403 without a key, 401 for a wrong one.

        Where no key is needed, 403 for a Host that is not this machine: a page whose name was made to resolve to
        loopback must not reach the server through a browser.
        """
        if not self._digests:
            self._check_host(headers.get("host", ""))
            return
        header = headers.get("authorization")
        if not header:
            raise Refusal(403, "no_key", "give an API key: Authorization: Bearer KEY")
        scheme, _, key = header.partition(" ")
        given = _digest(key.strip().encode("utf-8", "surrogateescape"))
        # Every key is compared, so that the time says nothing about which one came near.
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise Refusal(401, "wrong_key", "the API key is not known here", {"www-authenticate": "Bearer"})

    def _check_host(self, host: str) -> None:
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        if not is_loopback(name):
            raise Refusal(403, "host", "without an API key this server answers to localhost only")


def _digest(key: bytes) -> bytes:
    # Digests are of one length, so that comparing them does not tell that of the key.
    return hashlib.sha256(key).digest()
