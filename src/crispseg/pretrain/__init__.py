"""Backbones that learn before segmentation: from labelled photos and scenes, a teacher, or pictures alone."""
