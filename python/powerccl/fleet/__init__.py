# SPDX-License-Identifier: Apache-2.0
"""All runs of a site: kept as Parquet by `powerccl index`, and asked by `powerccl fleet` in SQL."""
