"""Model modules and Keras: loading what users wrote, serving big embeddings by row, the compiled
step, export.

The only layer below the roles that knows TensorFlow. It talks to nobody: parameters come in and
gradients go out as
NumPy arrays.
"""
