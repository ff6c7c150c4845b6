# SPDX-License-Identifier: Apache-2.0
"""A job at several numbers of GPUs."""
