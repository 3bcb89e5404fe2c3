"""A torchvision made for another torch breaks transformers, and so whatever imports it. Find it, say the cure."""

from collections.abc import Iterator
from contextlib import contextmanager

CURE = (
    "the installed torchvision does not fit this torch, and breaks transformers with it. MaxMatch does not need it. "
    "Run: pip uninstall torchvision"
)


@contextmanager
def named() -> Iterator[None]:
    """Where what is inside fails because of torchvision, say so in place of what transformers says."""
    try:
        yield
    except Exception as error:
        if is_to_blame(error):
            raise ImportError(CURE) from error
        raise


def is_to_blame(error: BaseException) -> bool:
    """Whether an error, or one that led to it, comes from importing a broken torchvision."""
    one: BaseException | None = error
    seen = set[int]()  # causes go in a circle where a library raises an error again, as gRPC does
    while one is not None and id(one) not in seen:
        if _went_through(one) or "operator torchvision::" in str(one):
            return True
        seen.add(id(one))
        one = one.__cause__ or one.__context__
    return False


def _went_through(error: BaseException) -> bool:
    """Whether a file of torchvision's is among those the error came from."""
    trace = error.__traceback__
    while trace is not None:
        if "/torchvision/" in trace.tb_frame.f_code.co_filename.replace("\\", "/"):
            return True
        trace = trace.tb_next
    return False
