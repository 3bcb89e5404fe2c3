"""Generated pictures of several things each, with five captions about different parts of them, and what these mean.

One picture has many true descriptions, which is what sets of vectors are for; and because the truth is known, one can
measure how well any model could do, and whether its vectors specialise.
"""

from maxmatch.data.scenes.scene_folder import generate, split_sizes
from maxmatch.data.scenes.world import Facet, Scene, Thing, caption_is_true, make_scene

__all__ = ["Facet", "Scene", "Thing", "caption_is_true", "generate", "make_scene", "split_sizes"]
