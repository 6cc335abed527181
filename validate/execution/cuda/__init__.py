"""The CUDA backend: PyCUDA, cuDNN, cuBLAS and pebbler's own kernels."""
