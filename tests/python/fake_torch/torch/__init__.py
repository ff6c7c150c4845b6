"""As much of PyTorch as python/powerccl/hooks uses, on no GPU. `control` scripts what the other ranks do."""

from typing import Any

from torch import cuda

bfloat16 = type("dtype", (), {"itemsize": 2, "__repr__": lambda _: "torch.bfloat16"})()


class device:  # noqa: N801 - PyTorch's name
    def __init__(self, name: object) -> None:
        self.name = str(name)


class Tensor:
    def __init__(self, nbytes: int, pool: object) -> None:
        self.nbytes, self.pool = nbytes, None
        self.address = pool.place(nbytes) if isinstance(pool, cuda.MemPool) else 0
        self.pool = pool

    def data_ptr(self) -> int:
        return self.address

    def __del__(self) -> None:
        if isinstance(self.pool, cuda.MemPool):
            self.pool.free.setdefault(self.nbytes, []).append(self.address)


def empty(*size: Any, dtype: Any, device: object) -> Tensor:
    shape = size[0] if isinstance(size[0], (tuple, list)) else size
    return Tensor(dtype.itemsize * int(shape[0]), cuda.current)
