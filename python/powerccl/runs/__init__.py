# SPDX-License-Identifier: Apache-2.0
"""The recorded runs of a directory: which of them, in which order, and as a table."""
