"""KKT points of the max-margin problem: how near a network is to one, and how to get there."""

from jaxkkt.kkt.certificate import Certificate, CertificateStatus, Stationarity, certificate
from jaxkkt.kkt.limit import FlowTrace, LimitStatus, follow_flow
from jaxkkt.kkt.nearest import kinks, multipliers
from jaxkkt.kkt.polish import Polished, PolishStatus, polish

__all__ = [
    "Certificate",
    "CertificateStatus",
    "FlowTrace",
    "LimitStatus",
    "PolishStatus",
    "Polished",
    "Stationarity",
    "certificate",
    "follow_flow",
    "kinks",
    "multipliers",
    "polish",
]
