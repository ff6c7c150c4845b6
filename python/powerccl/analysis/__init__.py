# SPDX-License-Identifier: Apache-2.0
"""Tables into findings: where communication time and energy went, what clock switching did, how two runs differ."""
