"""Raw input -> Features: local features, which of them are real, and one global feature."""

from maxmatch.encoders.gru import GRUEncoder
from maxmatch.encoders.protocol import Encoder
from maxmatch.encoders.region import RegionEncoder

__all__ = ["Encoder", "GRUEncoder", "RegionEncoder"]
