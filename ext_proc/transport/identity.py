"""Who a server is to those who connect by TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate's chain and its private key, as files in PEM."""

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return what Python's TLS needs of them; raise `OSError` when they will not do."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2"])  # gRPC speaks nothing else
        try:
            context.load_cert_chain(self.chain, self.key)
        except ssl.SSLError:
            raise OSError(f"{self.chain} and {self.key} are no certificate with its key") from None
        except OSError as error:
            raise OSError(f"cannot read {self.chain} and {self.key}: {error.strerror}") from None
        return context

    def key_and_chain(self) -> tuple[bytes, bytes]:
        """Return what grpc needs of them; raise `OSError` when they will not do."""
        self.context()  # grpc says of bad ones no more than that the port cannot be had
        return self.key.read_bytes(), self.chain.read_bytes()
