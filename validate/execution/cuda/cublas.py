"""cuBLAS: matrix products in single precision."""

from __future__ import annotations

import ctypes as c

from .calls import Product
from .libraries import Library


class Cublas:
    """A handle of cuBLAS on a stream.

    Parameters
    ----------
    stream
        Handle of the stream on which it computes.

    Raises
    ------
    PebblerError
        When cuBLAS is missing.
    """

    def __init__(self, stream: int) -> None:
        names = ["libcublas.so.13", "libcublas.so.12"]
        self._library = Library("cuBLAS", names, _explain, "install nvidia-cublas from PyPI")
        pointer, integer = c.c_void_p, c.c_int
        self._library.loaded.cublasGetStatusString.restype = c.c_char_p
        self._library.declare(
            cublasCreate_v2=[pointer],
            cublasDestroy_v2=[pointer],
            cublasSetStream_v2=[pointer, pointer],
            cublasGetVersion_v2=[pointer, pointer],
            cublasSgemm_v2=[
                pointer,
                *[integer] * 5,
                pointer,
                pointer,
                integer,
                pointer,
                integer,
                pointer,
                pointer,
                integer,
            ],
        )
        self._handle = self._library.create("cublasCreate_v2")
        self._library.call("cublasSetStream_v2", self._handle, stream)
        self._one, self._zero = c.c_float(1), c.c_float(0)

    @property
    def version(self) -> str:
        """Version in cuBLAS's count: 130000 is 13.0.0."""
        found = c.c_int()
        self._library.call("cublasGetVersion_v2", self._handle, c.byref(found))
        return f"{found.value // 10000}.{found.value // 100 % 100}.{found.value % 100}"

    def close(self) -> None:
        """Release the handle."""
        self._library.call("cublasDestroy_v2", self._handle)

    def multiply(self, product: Product, a: int, b: int, result: int) -> None:
        """Issue a product on the stream."""
        lda, ldb, ldc = product.leading
        beta = c.byref(self._one if product.adds else self._zero)
        sizes = (*map(int, product.transpose), *product.sizes)
        one = c.byref(self._one)
        self._library.call("cublasSgemm_v2", self._handle, *sizes, one, a, lda, b, ldb, beta, result, ldc)


def _explain(library: c.CDLL, status: int) -> str:
    return str(library.cublasGetStatusString(status).decode())
