"""Whose certificates are trusted when something is downloaded."""

from __future__ import annotations

import functools
import os
import ssl
from pathlib import Path

from localllm.errors import NetworkError

_VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")


def trusted() -> ssl.SSLContext:
    """Trusts the system's store and certifi's, or SSL_CERT_FILE, SSL_CERT_DIR or REQUESTS_CA_BUNDLE alone where one is set.

    Returns:
        ssl.SSLContext, shared by all who ask while these variables stay the same.

    Raises:
        NetworkError: What REQUESTS_CA_BUNDLE names cannot be read.
    """
    return _context(*(os.environ.get(name, "") for name in _VARIABLES))


@functools.lru_cache(maxsize=4)
def _context(bundle: str, file: str, folder: str) -> ssl.SSLContext:
    """The arguments are REQUESTS_CA_BUNDLE, and what OpenSSL itself reads: SSL_CERT_FILE and SSL_CERT_DIR."""
    context = ssl.create_default_context()
    if bundle:
        try:
            if Path(bundle).is_dir():
                context.load_verify_locations(capath=bundle)
            else:
                context.load_verify_locations(cafile=bundle)
        except OSError as error:
            raise NetworkError(f"REQUESTS_CA_BUNDLE={bundle} cannot be read ({error.strerror}); correct it") from None
    elif not (file or folder):
        import certifi

        context.load_verify_locations(cafile=certifi.where())
    return context
