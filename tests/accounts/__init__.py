# SPDX-License-Identifier: Apache-2.0
"""Do figures agree with the raw records, with each other, and with their wholes? One module a topic.

Figures are called `accounts.<figure>`. `make figures-accounts` runs all topics. Each fault is printed to stderr with
what shows it.
"""
