# SPDX-License-Identifier: Apache-2.0
"""Energy of each kind of communication, from counters that are slower than communication.

Samples become observations: so many joules between two moments, dated as well as reads allow. The trace becomes phases
(what communicates, with or without computation beside it) and parts of them by place and age. A regression of the one
on the other gives watts of each part. These are summed up to kinds, with intervals and with what is not known.
"""

from powerccl.analysis.attribution.attribute import attribute
from powerccl.analysis.attribution.kind_energy import EnergyFindings, KindEnergy

__all__ = ["EnergyFindings", "KindEnergy", "attribute"]
