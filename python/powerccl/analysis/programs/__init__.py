# SPDX-License-Identifier: Apache-2.0
"""The typical iteration of each rank as a program: whatif and tune replay it, and ways forecasts by it."""
