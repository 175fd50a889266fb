"""The Triton kernels, tuned for Hopper. Only CUDA tensors come here (or any, under Triton's interpreter).

None waits for the device and no grid depends on values, so that all of them can be captured in a CUDA graph.
"""
