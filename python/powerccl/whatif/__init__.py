# SPDX-License-Identifier: Apache-2.0
"""A recorded run in virtual time: its ranks' typical iterations, on a model of its machine, under clock policies."""
