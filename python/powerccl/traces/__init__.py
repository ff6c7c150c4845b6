# SPDX-License-Identifier: Apache-2.0
"""Run folders into tables: what ranks and samplers wrote, read without ever failing on a damaged file.

`folder.read_run(folder)` is the way in. What could not be read is in `RunData.problems`, in words. Nothing is imported
here: `powerccl run` writes run.json from this room before its child starts, and must not wait for numpy.
"""
