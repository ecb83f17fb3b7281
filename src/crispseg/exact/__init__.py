"""A whole scene as one image, in bounded memory.

The model is run block by block over bands of rows. What couples all pixels of a scene is a sum over them (the state
of NC-SSD, a mean, a maximum, a softmax), so each band adds its part and the sum is read out in another sweep;
convolutions keep the few rows they need from the band before. Maps between sweeps stay in memory while they fit and
go to temporary files otherwise. See docs/explanation/exact.md.
"""

from __future__ import annotations

from crispseg.exact.run import Estimate, estimate, logits, segment_stream

__all__ = ["Estimate", "estimate", "logits", "segment_stream"]
