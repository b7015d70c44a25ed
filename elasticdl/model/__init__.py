"""Model modules and Keras: user code, row-wise embeddings, the compiled step and the export.

The only layer below the roles that imports TensorFlow. It does not communicate: parameters come
in and gradients go out as NumPy arrays.
"""
