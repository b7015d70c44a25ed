"""Model modules and Keras: user code, row-wise embeddings, the compiled step and the export.

The only layer below the roles that imports TensorFlow. It communicates with nobody: parameters come
in and gradients go out as NumPy arrays.
"""
