"""Initial values of rows, in NumPy: bit-identical to embedding/native/initializer_kernels.h.

The generator's state is a counter over (seed, id, column), so a value depends on no other value:
neither on the order in which rows are made, nor on the server. It uses only basic IEEE operations,
which every machine rounds alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.embedding.spec import Dtype, InitializerKind, InitializerSpec

_STEP = np.uint64(0x9E3779B97F4A7C15)
_BELOW_MINUS_TWO = 0.022750131948179195
"""P(z < -2) of the normal distribution."""
# Coefficients of Wichura's Algorithm AS 241 (PPND16, 1988), from the constant term up.
_NEAR_TOP = (
    3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
    1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
    3.3430575583588128105e4, 2.5090809287301226727e3,
)  # fmt: skip
_NEAR_BOTTOM = (
    1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
    2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
    5.2264952788528545610e3,
)  # fmt: skip
_FAR_TOP = (
    1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
    3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
    2.27238449892691845833e-2, 7.74545014278341407640e-4,
)  # fmt: skip
_FAR_BOTTOM = (
    1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
    1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
    1.05075007164441684324e-9,
)  # fmt: skip


def initial_weights(
    spec: InitializerSpec,
    seed: int,
    ids: NDArray[np.int64],
    dim: int,
    dtype: Dtype = Dtype.FLOAT32,
) -> NDArray[np.floating[Any]]:
    """First weights [len(ids), dim] of rows `ids`; `seed` counts modulo 2^64."""
    rounded: type[np.floating[Any]] = np.float64 if dtype is Dtype.FLOAT64 else np.float32
    # Also for float64: Keras rounds a constant to float32 first.
    a, b = rounded(np.float32(spec.a)), rounded(np.float32(spec.b))
    match spec.kind:
        case InitializerKind.CONSTANT:
            return np.full((len(ids), dim), a, rounded)
        case InitializerKind.UNIFORM:
            unit = (_random(seed, ids, dim) >> np.uint64(40)).astype(rounded) * rounded(2**-24)
            return np.asarray(a + (b - a) * unit)
        case InitializerKind.NORMAL:
            return _normal(a, b, _random(seed, ids, dim), 0.0, 1.0)
        case InitializerKind.TRUNCATED_NORMAL:
            return _normal(
                a, b, _random(seed, ids, dim), _BELOW_MINUS_TWO, 1.0 - 2.0 * _BELOW_MINUS_TWO
            )


def _random(seed: int, ids: NDArray[np.int64], dim: int) -> NDArray[np.uint64]:
    """64 random bits for each (id, column): uint64[len(ids), dim]."""
    with np.errstate(over="ignore"):
        # Hash the seed before adding the id: otherwise (seed, id + 1) and (seed + 1, id) would
        # coincide.
        key = _mix(ids.view(np.uint64) + _mix(np.uint64(seed % 2**64) + _STEP))
        return _mix(key[:, None] + np.arange(1, dim + 1, dtype=np.uint64) * _STEP)


def _mix(x: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))


def _normal(
    mean: np.floating[Any],
    deviation: np.floating[Any],
    bits: NDArray[np.uint64],
    low: float,
    width: float,
) -> NDArray[np.floating[Any]]:
    """Draw by the quantile of a uniform probability in low .. low + width."""
    p = low + width * (((bits >> np.uint64(33)).astype(np.float64) + 0.5) * 2.0**-31)
    return (np.float64(mean) + np.float64(deviation) * _normal_quantile(p)).astype(mean.dtype)


def _normal_quantile(p: NDArray[np.float64]) -> NDArray[np.float64]:
    q = p - 0.5
    near = 0.180625 - q * q
    middle = q * _polynomial(_NEAR_TOP, near) / _polynomial(_NEAR_BOTTOM, near)
    # AS 241 has a third range for r > 5, p below 1.4e-11. With 31 bits p is at least 2**-32, so r <
    # 5.
    far = np.sqrt(-_natural_log(np.where(q < 0.0, p, 1.0 - p))) - 1.6
    size = _polynomial(_FAR_TOP, far) / _polynomial(_FAR_BOTTOM, far)
    return np.where(near >= 0.0, middle, np.where(q < 0.0, -size, size))


def _natural_log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute ln(x) for 0 < x < 1, by atanh's series."""
    bits = x.view(np.int64)
    exponent = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
    mantissa = (bits - (exponent << np.int64(52))).view(np.float64)  # in sqrt(1/2) .. sqrt(2)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _polynomial(tuple(1.0 / n for n in range(1, 20, 2)), s * s)
    return exponent.astype(np.float64) * 0.6931471805599453 + 2.0 * s * series


def _polynomial(coefficients: tuple[float, ...], x: NDArray[np.float64]) -> NDArray[np.float64]:
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total
