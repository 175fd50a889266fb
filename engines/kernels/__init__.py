"""The operations that models are made of: each a torch twin (`<op>_reference`) and, for CUDA tensors, a Triton kernel.

A CUDA tensor goes to the kernel, any other to the twin. The kernels lie in `hopper`, which alone imports triton,
and only when a CUDA tensor arrives.
"""
