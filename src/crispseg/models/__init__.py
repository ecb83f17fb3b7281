"""CRISP and its parts: backbone (vssd), operator (dco), heads (omp, upernet), and the registry of names."""
