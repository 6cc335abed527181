"""The CUDA backend: PyCUDA, cuDNN, cuBLAS and kernels of our own."""
