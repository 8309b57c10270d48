"""The corrected gradient as a projection onto a cone: the quadratic program of equations 4 and 9 on plain tensors.

This is the reference that every backend is tested against; it depends on torch alone.

The corrected gradient is the point nearest to g that no row c_i of C disagrees with (the paper's A is our -C):

    x = argmin 1/2 |x - g|^2   s.t.  <c_i, x> >= 0,        x = g + C'v,
    v = argmin 1/2 v'Kv + p'v  s.t.  v >= margin,          K = CC', p = Cg.

With unit rows, h = g + C' margin and u = v - margin this is least squares over non-negative u,

    min 1/2 |h + C'u|^2,   slope y = C (h + C'u) = q + Ku,   solved where u >= 0, y >= 0 and u'y = 0.

`solve_dual` has K and q, `project` has the rows themselves. A Gram matrix contains the squares of small angles, so that
`solve_dual` cannot distinguish rows closer than 3e-7; `project`, which uses an orthogonal factorization, can.

Accuracy of `solve_dual`, in every backend: the conditions above hold to within rho = 4 n eps (|h| + sum u), so that x
is within sqrt(n) rho / sigma of the exact answer, where sigma is the least singular value of the rows involved.
docs/mathematics.md has the proof and what holds for rows closer than 3e-7.

Everything is computed in float64, without synchronizing with a GPU: only values of CPU tensors are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["project", "solve_dual"]

_ROUNDING = 4 * torch.finfo(torch.float64).eps  # a slope between unit vectors above -_ROUNDING counts as 0
_PIVOT = 450  # a squared distance of a unit row from a span below this many roundings of a Gram matrix counts as 0


def solve_dual(gram: Tensor, products: Tensor, margin: float | Tensor = 0.0) -> Tensor:
    """Return the multipliers v = argmin 1/2 v'Kv + p'v subject to v >= margin, the dual of equations 4 and 9.

    Args:
        gram: K = CC', shape (..., n, n), symmetric and, up to the rounding of its dtype, positive semidefinite. Compute
            it in float64: for rows at an angle a to each other's opposites, a factor 1/a^2 of its precision is lost.
        products: p = Cg, shape (..., n).
        margin: lower bound of the multipliers, finite and >= 0: a number, or a tensor that broadcasts to (..., n).

    Returns:
        v, shape (..., n), with the dtype and device of `products`; exactly the margin for a zero row, and exactly 0
        everywhere where no product is negative and the margin is 0. Where K is singular v is one of many solutions,
        and g + C'v is the same for all of them.

    Examples:
        >>> constraints = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> gradient = torch.tensor([-3.0, 1.0])  # against the first, along the second
        >>> congruency.solve_dual(constraints @ constraints.T, constraints @ gradient)
        tensor([3., 0.])
    """
    n = _last_size("products", products, "(..., n)")
    _check("gram", gram, (n, n), f"(..., n, n) with n = {n} from products", "products", products)
    floor = _lower_bound(margin, n, "products", products)
    batch = _batch(gram=gram.shape[:-2], products=products.shape[:-1], margin=floor.shape[:-1])
    k, p = gram.detach().double(), products.detach().double()
    grain = max(torch.finfo(gram.dtype).eps, torch.finfo(products.dtype).eps)
    if n == 0 or 0 in batch:
        v = p.new_zeros(*batch, n)
    elif n == 1:
        v = torch.maximum(torch.where(k > 0, -p.unsqueeze(-1) / k, 0.0).squeeze(-1), floor)
    else:
        v = _solve_tensors(k, p, floor, grain)
    # Products that no gradient can have make the problem unbounded: v is then large, but finite.
    return v.clamp(max=torch.finfo(products.dtype).max).to(products.dtype)


def project(gradient: Tensor, constraints: Tensor, margin: float | Tensor = 0.0) -> Tensor:
    """Return the corrected gradient x = g + C'v: the point nearest to g with <c_i, x> >= 0 (equations 4 and 9).

    Args:
        gradient: g, shape (..., p).
        constraints: C, one constraint per row, shape (..., n, p); n may exceed p, zero rows are ignored.
        margin: lower bound of the multipliers, finite and >= 0: a number, or a tensor that broadcasts to (..., n).
            With 0, x is the projection onto the cone; a positive margin moves x further into it (GEM's memory
            strength).

    Returns:
        x, shape (..., p), with the dtype and device of `gradient`; g bit for bit where it is feasible and margin is 0.

    Examples:
        >>> congruency.project(torch.tensor([-3.0, 1.0]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        tensor([0., 1.])
    """
    p = _last_size("gradient", gradient, "(..., p)")
    _check_floating("constraints", constraints)
    n = constraints.shape[-2] if constraints.ndim > 1 else 0
    _check("constraints", constraints, (n, p), f"(..., n, p) with p = {p} from gradient", "gradient", gradient)
    floor = _lower_bound(margin, n, "gradient", gradient)
    batch = _batch(gradient=gradient.shape[:-1], constraints=constraints.shape[:-2], margin=floor.shape[:-1])
    g = gradient.detach().expand(*batch, p)
    if n == 0 or g.numel() == 0:
        return g.clone()
    rows, norm = _unit(constraints.detach().double())
    floor = floor * norm.squeeze(-1)
    h = g.double() + _times(rows.mT, floor)
    unit_h, scale = _unit(h)
    q = _times(rows, unit_h)
    violated = q < -_ROUNDING
    changed = (violated | (floor > 0)).any(-1, keepdim=True)
    if _on_host(g) and not changed.any():
        return g.clone()
    if n == 1:
        x = h - q.clamp(max=0) * scale * rows.squeeze(-2)
    else:
        # Solve within the span of the rows, where the problem has at most n dimensions, and map the step back.
        basis, columns = torch.linalg.qr(rows.mT)
        point = _times(basis.mT, unit_h)
        problem = _Rows.of(columns.expand(*batch, *columns.shape[-2:]), point)
        _, image = _enumerate(problem, q) if n <= 4 else _descend(problem.ridged(), q)
        x = h + _times(basis, image[..., : point.shape[-1]] - point) * scale
    limit = torch.finfo(g.dtype).max
    return torch.where(changed, x.clamp(-limit, limit).to(g.dtype), g)


def _solve_tensors(gram: Tensor, products: Tensor, floor: Tensor, grain: float) -> Tensor:
    """Solve a batch of problems of `solve_dual`, on any device."""
    inverse = gram.diagonal(dim1=-2, dim2=-1).rsqrt().nan_to_num(0.0, 0.0, 0.0)  # 0 removes a zero row
    q = (products + _times(gram, floor)) * inverse
    scale = _or_one(q.abs().amax(-1, keepdim=True))
    q = q / scale
    violated = (q < -_ROUNDING).any(-1, keepdim=True)
    host = _on_host(q)
    if host and not violated.any():
        return torch.zeros_like(q) + floor
    problem = _Gram((gram * inverse.unsqueeze(-1) * inverse.unsqueeze(-2)).clamp(-1, 1), q, grain)
    # A GPU fits all 256 sets of 8 rows in the time of one set; a search takes many kernel launches.
    few = q.shape[-1] <= (4 if host else 8)
    u, _ = _enumerate(problem, q) if few else _descend(problem.ridged(), q)
    return u * violated * scale * inverse + floor


class _Problem(Protocol):
    """min 1/2 |h + C'u|^2 + 1/2 ridge |u - centre|^2 over u >= 0, with unit rows and |h| about 1.

    A point is given by u together with its image, from which the problem computes the objective and its slope.
    """

    @property
    def resolution(self) -> float:
        """The smallest distance of a row from the span of others that is distinguishable from 0."""

    @property
    def ridge(self) -> float | Tensor:
        """The weight of the ridge, 0 before `ridged`; broadcasts with u."""

    def stacked(self) -> _Problem:
        """Return the problem with one more batch dimension, of size 1."""

    def ridged(self) -> _Problem:
        """Return the problem with a ridge, centred at 0, that makes any set of rows numerically independent."""

    def moved(self, step: Tensor, image: Tensor) -> tuple[_Problem, Tensor]:
        """Return the problem with its centre moved by a step, and the new image of a point."""

    def image(self, u: Tensor) -> Tensor:
        """Return the image of u."""

    def slope(self, image: Tensor) -> Tensor:
        """Return the gradient of the objective at a point, shape (..., n)."""

    def rounding(self, u: Tensor) -> float | Tensor:
        """Return the size up to which a slope counts as 0, given rounding."""

    def gain(self, u: Tensor, image: Tensor, new_u: Tensor, new_image: Tensor) -> Tensor:
        """Return by how much the objective falls from one point to another, times 2, shape (..., 1)."""

    def fit(self, free: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Minimize over the entries of u marked free, with the others 0 and any sign allowed.

        Returns the minimizer, its image, and the distance of each free row from the span of those before it.
        """


@dataclass(frozen=True)
class _Gram:
    """The problem given by K, shape (..., n, n), and q, shape (..., n), fitted by Cholesky; the image is the slope."""

    gram: Tensor
    offset: Tensor
    grain: float  # the rounding of K
    ridge: float | Tensor = 0.0

    @property
    def resolution(self) -> float:
        return math.sqrt(_PIVOT * self.grain)

    def stacked(self) -> _Gram:
        return _Gram(self.gram.unsqueeze(-3), self.offset.unsqueeze(-2), self.grain)

    def ridged(self) -> _Gram:
        """Add a ridge of rounding size or, if K is further from semidefinite than that, the smallest that suffices."""
        n = self.gram.shape[-1]
        eye = torch.eye(n, dtype=self.gram.dtype, device=self.gram.device)
        # The last candidate always suffices: with unit rows K + nI is diagonally dominant. The factor 2 is for safety.
        ladder = n * torch.pow(10.0, torch.arange(-14, 1, dtype=self.gram.dtype, device=self.gram.device))
        ladder = ladder.clamp(min=n * _PIVOT * self.grain / 10)
        if _on_host(self.gram) and not torch.linalg.cholesky_ex(self.gram + ladder[0] * eye).info.any():
            ladder = ladder[:1]
        failed = torch.linalg.cholesky_ex(self.gram.unsqueeze(-3) + ladder[:, None, None] * eye).info > 0
        ridge = 2 * torch.where(failed, math.inf, ladder).amin(-1, keepdim=True)
        return replace(self, gram=self.gram + ridge.unsqueeze(-1) * eye, ridge=ridge)

    def moved(self, step: Tensor, image: Tensor) -> tuple[_Gram, Tensor]:
        pull = self.ridge * step
        return replace(self, offset=self.offset - pull), image - pull

    def image(self, u: Tensor) -> Tensor:
        return _times(self.gram, u) + self.offset

    def slope(self, image: Tensor) -> Tensor:
        return image

    def rounding(self, u: Tensor) -> Tensor:
        return _ROUNDING + 4 * self.grain * u.sum(-1, keepdim=True)

    def gain(self, u: Tensor, image: Tensor, new_u: Tensor, new_image: Tensor) -> Tensor:
        return ((u - new_u) * (image + new_image)).sum(-1, keepdim=True)

    def fit(self, free: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        eye = torch.eye(free.shape[-1], dtype=self.gram.dtype, device=free.device)
        factor = torch.linalg.cholesky_ex(torch.where(free.unsqueeze(-1) & free.unsqueeze(-2), self.gram, eye)).L
        half = torch.linalg.solve_triangular(factor, (self.offset * free).unsqueeze(-1), upper=False)
        z = torch.linalg.solve_triangular(factor.mT, -half, upper=True).squeeze(-1)
        return z, self.image(z), factor.diagonal(dim1=-2, dim2=-1)


@dataclass(frozen=True)
class _Rows:
    """The problem given by C' and h over n rows for the ridge, (..., k + n, n) and (..., k + n), fitted by QR.

    The image is the corrected point h + C'u stacked on the ridge's part. For nearly opposite rows, multipliers grow as
    the angle shrinks, and computing h + C'u would lose as much precision; a fit takes the point from its factorization
    instead, without this loss.
    """

    columns: Tensor
    point: Tensor
    root: float = 0.0

    @classmethod
    def of(cls, columns: Tensor, point: Tensor) -> _Rows:
        n = columns.shape[-1]
        return cls(pad(columns, (0, 0, 0, n)), pad(point, (0, n)))

    @property
    def resolution(self) -> float:
        return 1e-12

    @property
    def ridge(self) -> float:
        return self.root**2

    def stacked(self) -> _Rows:
        return _Rows(self.columns.unsqueeze(-3), self.point.unsqueeze(-2))

    def ridged(self) -> _Rows:
        """Add a ridge between the angles of rounding, 1e-16, and the smallest that are resolved, 1e-7."""
        columns = self.columns.clone()
        _lowest_diagonal(columns).fill_(1e-9)
        return _Rows(columns, self.point, 1e-9)

    def moved(self, step: Tensor, image: Tensor) -> tuple[_Rows, Tensor]:
        pull = pad(self.root * step, (self.point.shape[-1] - step.shape[-1], 0))
        return replace(self, point=self.point - pull), image - pull

    def image(self, u: Tensor) -> Tensor:
        return _times(self.columns, u) + self.point

    def slope(self, image: Tensor) -> Tensor:
        return _times(self.columns.mT, image)

    def rounding(self, u: Tensor) -> Tensor:
        return torch.full_like(u[..., :1], _ROUNDING)

    def gain(self, u: Tensor, image: Tensor, new_u: Tensor, new_image: Tensor) -> Tensor:
        return ((image - new_image) * (image + new_image)).sum(-1, keepdim=True)

    def fit(self, free: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = free.shape[-1]
        system = self.columns * free.unsqueeze(-2)
        _lowest_diagonal(system).add_(~free)
        point = self.point.expand(system.shape[:-1])
        basis, factor = torch.linalg.qr(torch.cat([system, point.unsqueeze(-1)], -1))
        corner = factor[..., :n, :n]
        z = torch.linalg.solve_triangular(corner, -factor[..., :n, n:], upper=True).squeeze(-1) * free
        residual = basis[..., n] * factor[..., n, n:]
        held = pad(point[..., -n:] * ~free, (point.shape[-1] - n, 0))  # ridge of the u held at 0, not part of the fit
        return z, residual + held, corner.diagonal(dim1=-2, dim2=-1).abs()


def _lowest_diagonal(columns: Tensor) -> Tensor:
    return columns[..., -columns.shape[-1] :, :].diagonal(dim1=-2, dim2=-1)


def _enumerate(problem: _Problem, q: Tensor) -> tuple[Tensor, Tensor]:
    """Fit all 2^n sets of free multipliers at once and return the best fit and its image.

    A set solves the problem if neither its multipliers nor its slopes are negative. Some set of independent rows does
    (Caratheodory), so that dependent ones can be skipped.
    """
    n = q.shape[-1]
    problem = problem.stacked()
    free = torch.arange(2**n, device=q.device).unsqueeze(-1) & 2 ** torch.arange(n, device=q.device) > 0
    z, image, distance = problem.fit(free)
    worst = torch.minimum(z, problem.slope(image)).amin(-1)
    best = torch.where(distance.amin(-1) > problem.resolution, worst, -math.inf).argmax(-1)[..., None, None]
    return z.take_along_dim(best, -2).squeeze(-2).clamp(min=0), image.take_along_dim(best, -2).squeeze(-2)


def _descend(problem: _Problem, q: Tensor) -> tuple[Tensor, Tensor]:
    """Search for the right set of free multipliers, fit by fit, and return the solution and its image.

    A projected Newton method (Bertsekas 1982): fit the free multipliers, clip the fit at 0, and free those with a
    negative slope there. If clipping does not lower the objective, move towards the fit only until the first multiplier
    is 0, and hold it there. It terminates: a clipped fit depends on its set alone and each lowers the objective, so no
    set occurs twice, and at most n shortened steps come between two of them. Block pivoting (Judice and Pires 1994) is
    as fast on random rows, but takes hundreds of fits on dependent ones, where it falls back to single exchanges.

    The first set is the worst multiplier alone: rows of consecutive steps are similar, so correcting one corrects all.

    Dependent rows need a ridge to be fitted. The proximal point method removes its effect: move its center to the
    solution and continue until the pull of the ridge is below rounding.

    On a GPU, convergence cannot be tested without synchronizing, so the number of fits is fixed and solved problems
    stay unchanged. The number is above what any problem of tests/test_cone.py takes, which counts them. A problem that
    needs more ends with u >= 0 and a lower objective.
    """
    n, host = q.shape[-1], _on_host(q)
    u = centre = torch.zeros_like(q)
    image = problem.image(u)
    free = _steepest(problem, u, image, 1.0)
    pull = torch.full_like(q[..., :1], math.inf)
    active = pull > 0
    for _ in range(10 * n + 50 if host else n + 28):
        z, fitted, _ = problem.fit(free)
        inside = (z >= 0).all(-1, keepdim=True)
        clipped = z.clamp(min=0)
        landed = torch.where(inside, fitted, problem.image(clipped))
        lower = problem.gain(u, image, clipped, landed) > 0
        entering = _steepest(problem, clipped, landed, 0.7)
        # A fit that does not lower the objective differs from the last only by rounding, and so do its slopes.
        settled = inside & ~(lower & entering.any(-1, keepdim=True))
        accepted = inside | lower
        ratio = torch.where(z < 0, u / (u - z), math.inf)
        way = ratio.amin(-1, keepdim=True)
        stopped = ratio <= way
        free = torch.where(accepted, (clipped > 0) | entering, free & ~stopped)
        partial = u.lerp(z, way).clamp(min=0).masked_fill(stopped, 0.0)
        u = torch.where(active, torch.where(accepted, clipped, partial), u)
        image = torch.where(active, torch.where(accepted, landed, image.lerp(fitted, way)), image)
        step = torch.where(active & settled, u - centre, 0.0)
        last, pull = pull, torch.where(settled, (problem.ridge * step).abs().amax(-1, keepdim=True), pull)
        # Rows that only the ridge separates would be pulled forever, so each pass has to halve the last pull.
        active = active & ~(settled & ((pull <= problem.rounding(u) / 1000) | (pull > last / 2)))
        if host and not active.any():
            break
        centre = centre + step
        problem, image = problem.moved(step, image)
    return u, image


def _steepest(problem: _Problem, u: Tensor, image: Tensor, share: float) -> Tensor:
    """Mark the multipliers whose slope is negative, and at least a given share of the most negative one."""
    slope = problem.slope(image)
    return slope <= (share * slope.amin(-1, keepdim=True)).clamp(max=-problem.rounding(u))


def _on_host(tensor: Tensor) -> bool:
    """Whether values can be read without synchronizing with a device."""
    return tensor.device.type == "cpu"


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _or_one(size: Tensor) -> Tensor:
    """Return the size, with 0 replaced by 1, as a divisor."""
    return size + (size == 0)


def _unit(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the vectors scaled to length 1, zero vectors unchanged, and their lengths, (..., 1).

    The largest entry is divided out first: the squares of entries above 1e154 or below 1e-154 are out of range.
    """
    largest = torch.linalg.vector_norm(vectors, ord=math.inf, dim=-1, keepdim=True)
    vectors = vectors / _or_one(largest)
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / _or_one(norm), (largest * norm).clamp(max=torch.finfo(vectors.dtype).max)


def _last_size(name: str, tensor: Tensor, shape: str) -> int:
    _check_floating(name, tensor)
    if tensor.ndim < 1:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    return tensor.shape[-1]


def _check_floating(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got a {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got {tensor.dtype}")


def _check(name: str, tensor: Tensor, last: tuple[int, int], shape: str, other: str, like: Tensor) -> None:
    _check_floating(name, tensor)
    if tensor.shape[-2:] != last:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    _check_device(name, tensor, other, like)


def _check_device(name: str, tensor: Tensor, other: str, like: Tensor) -> None:
    if tensor.device != like.device:
        raise ValueError(f"{name} must be on the device of {other}, {like.device}, got {tensor.device}")


def _lower_bound(margin: float | Tensor, n: int, other: str, like: Tensor) -> Tensor:
    """Return the margin as a float64 tensor of shape (..., n)."""
    if not isinstance(margin, Tensor):
        if not 0 <= margin < math.inf:
            raise ValueError(f"margin must be finite and >= 0, got {margin}")
        return torch.full((n,), margin, dtype=torch.float64, device=like.device)
    _check_device("margin", margin, other, like)
    if margin.ndim and margin.shape[-1] not in (1, n):
        raise ValueError(f"margin must broadcast to shape (..., n) with n = {n}, got {tuple(margin.shape)}")
    # Reading the values of a tensor on a GPU would synchronize.
    if _on_host(margin) and not ((margin >= 0) & margin.isfinite()).all():
        raise ValueError(f"margin must be finite and >= 0, got {margin.tolist()}")
    return margin.detach().double().expand(*margin.shape[:-1], n)


def _batch(**shapes: torch.Size) -> torch.Size:
    """Return the shape that all batch dimensions broadcast to."""
    given = list(shapes.values())
    if given.count(given[0]) == len(given):  # broadcast_shapes takes longer than solving for one row
        return given[0]
    try:
        return torch.Size(torch.broadcast_shapes(*given))
    except RuntimeError:
        listed = ", ".join(f"{tuple(shape)} of {name}" for name, shape in shapes.items())
        raise ValueError(f"batch dimensions must broadcast, got {listed}") from None
