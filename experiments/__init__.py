"""Experiments of elastic training on a shared cluster: `python -m experiments NAME`.

The control plane and the scheduler are real, nodes are simulated (KWOK), and pods are those that
masters make. In place of training, a cost model counts the time that workers run.
"""
