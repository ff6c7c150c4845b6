# SPDX-License-Identifier: Apache-2.0
"""Findings into what people look at: terminal tables and pictures, self-contained HTML pages."""
