"""The whole suite as on other machines: other instruction sets, other numbers of threads (`make test-portable`).

Results may differ in the last bits between processors, and no test may depend on them. Each variant holds back torch,
MKL, oneDNN, NumPy, OpenBLAS and Numba alike. `python tests/portable.py avx2 -- tests/matching` runs one variant of one
folder.
"""

import os
import subprocess
import sys
import time
from pathlib import Path


def numpy_features(keep: tuple[str, ...]) -> str:
    """The features of this processor that NumPy would choose code for, without those to keep."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name) and name not in keep)


AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "DNNL_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NUMBA_CPU_NAME": "generic",
    "NPY_DISABLE_CPU_FEATURES": numpy_features(keep=("X86_V3", "AVX2", "FMA3")),
}
PLAIN = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "DNNL_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NUMBA_CPU_NAME": "generic",
    "NPY_DISABLE_CPU_FEATURES": numpy_features(keep=()),
}
THREADS = {"MAXMATCH_TEST_THREADS": "4", "OMP_NUM_THREADS": "4"}
VARIANTS: dict[str, dict[str, str]] = {
    "native": {},
    "avx2": AVX2,
    "plain": PLAIN,
    "native-4-threads": THREADS,
    "avx2-4-threads": {**AVX2, **THREADS},
}


def main() -> int:
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    names, rest = arguments[:cut] or list(VARIANTS), arguments[cut + 1 :]
    failed = []
    for name in names:
        environment = {**os.environ, **{key: value for key, value in VARIANTS[name].items() if value}}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "auto",
            "--maxprocesses",
            "4",
            "--dist",
            "loadfile",
            "-m",
            "not slow",
            *rest,
        ]
        start = time.monotonic()
        code = subprocess.run(command, cwd=Path(__file__).parents[1], env=environment, check=False).returncode
        print(
            f"{name}: {'passed' if code == 0 else f'failed ({code})'} in {time.monotonic() - start:.0f} s", flush=True
        )
        failed += [name] if code else []
    print(f"failed: {', '.join(failed)}" if failed else f"all of {', '.join(names)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
