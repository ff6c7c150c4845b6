# SPDX-License-Identifier: Apache-2.0
"""Ways to carry collectives out without changing a clock: what each saves on a machine, and in a job."""
