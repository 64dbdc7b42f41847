"""The canonical history on disk, behind one small protocol."""
