# SPDX-License-Identifier: Apache-2.0
"""Measurements that start many jobs: profiles, tables of ways, tuning and scaling studies."""
