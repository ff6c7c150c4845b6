# SPDX-License-Identifier: Apache-2.0
"""What clock policies would have made of a recorded run."""

from powerccl.analysis.whatif.predict import what_if as what_if
