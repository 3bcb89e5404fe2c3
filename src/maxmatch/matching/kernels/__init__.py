"""The matching on the GPU (Triton). `similarity` and `scoring` choose these by themselves; torch is the reference.

Two ways, both exact:

* *fused* (four vectors a set, Hopper and later): product and matching in one kernel, so that the cosines never leave
  the registers.
* *planes* (up to eight vectors): a kernel after the library's product, which reads each cosine once.
"""

from maxmatch.matching.kernels.counting import count_levels
from maxmatch.matching.kernels.fused import can_fuse, fused_scores, pack_columns, pack_rows
from maxmatch.matching.kernels.planes import MAX_PLANES, plane_assignment, plane_scores

__all__ = [
    "MAX_PLANES",
    "can_fuse",
    "count_levels",
    "fused_scores",
    "pack_columns",
    "pack_rows",
    "plane_assignment",
    "plane_scores",
]
