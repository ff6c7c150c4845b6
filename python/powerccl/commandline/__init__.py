# SPDX-License-Identifier: Apache-2.0
"""What verbs share: messages, output, and how runs and platforms are named."""
