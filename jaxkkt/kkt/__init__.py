"""KKT points of the max-margin problem: how near a network is to one, and how to get there."""

from jaxkkt.kkt.certificate import (
    Certificate,
    CertificateStatus,
    Stationarity,
    certificate,
    kinks,
    multipliers,
)
from jaxkkt.kkt.polish import Polished, PolishStatus, polish

__all__ = [
    "Certificate",
    "CertificateStatus",
    "PolishStatus",
    "Polished",
    "Stationarity",
    "certificate",
    "kinks",
    "multipliers",
    "polish",
]
