"""Congruency between samples: the cosine of every pair of per-sample gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from congruency.modules import unwrap

__all__ = ["pairwise_congruency", "pairwise_similarity"]

Loss = Callable[[Tensor, Tensor], Tensor]
Gradients = dict[str, Tensor]

_COLUMNS = 2**18  # elements of a gradient converted to float64 at a time


def pairwise_congruency(
    model: nn.Module,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    params: Iterable[Tensor | str] | None = None,
    *,
    chunk_size: int = 16,
) -> Tensor:
    """Return the cosine between the gradients of every two samples (the paper's "Validity of Congruency Metric").

    ``nu_ij = <g_i, g_j> / (|g_i| |g_j|)`` with ``g_i`` the gradient of ``loss(model(inputs[i:i+1]), targets[i:i+1])``.
    The model's weights, buffers, mode and ``.grad`` do not change.

    Batch norm in training mode mixes the samples, so per-sample gradients are undefined, and dropout gives a different
    gradient each time; both raise an error that advises to call ``model.eval()``. A mean in ``loss`` has no effect,
    since each sample is a batch of one.

    Memory: at most ``2 * chunk_size`` gradients at a time, that is ``2 * chunk_size * p`` numbers for p selected
    parameters, in addition to the backward pass of ``chunk_size`` samples and one small slice in float64. Time: with
    c = n / chunk_size chunks, gradients are computed for c (c + 1) / 2 chunks, so larger chunks are faster.

    Args:
        model: Called with a batch of one sample.
        loss: ``loss(output, target)`` on a batch, such as ``torch.nn.functional.cross_entropy``.
        inputs: n samples, shape (n, ...).
        targets: Their targets, shape (n, ...).
        params: Parameters of the model, or their names; default: all that require a gradient. The paper takes
            the last layer: ``congruency.head(model).parameters()``.
        chunk_size: Number of samples whose gradients are computed at once.

    Returns:
        (n, n), float64, symmetric, in [-1, 1], with 1 on the diagonal; a sample whose gradient is 0 has a row and a
        column of nan.

    Examples:
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> inputs = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
        >>> nu = congruency.pairwise_congruency(model, torch.nn.functional.mse_loss, inputs, torch.ones(3, 1))
        >>> nu.round(decimals=3)
        tensor([[1., 1., 0.],
                [1., 1., 0.],
                [0., 0., 1.]], dtype=torch.float64)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got a {type(model).__name__}")
    if not callable(loss):
        raise TypeError(
            f"loss must be a function loss(output, target), got a {type(loss).__name__}; pass the function, not its "
            "value"
        )
    for name, samples in (("inputs", inputs), ("targets", targets)):
        if not isinstance(samples, Tensor):
            raise TypeError(f"{name} must be a tensor, got a {type(samples).__name__}")
    if len(inputs) != len(targets):
        raise ValueError(f"inputs and targets must have the same length, got {len(inputs)} and {len(targets)}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be a positive number of samples, got {chunk_size}")
    chosen = _chosen(model, params)
    inner = unwrap(model)
    _refuse_batch_norm(inner)
    gradients = _per_sample_gradients(inner, loss, chosen)

    device = next(iter(chosen.values())).device
    gram = torch.zeros(len(inputs), len(inputs), dtype=torch.float64, device=device)
    chunks = [slice(start, start + chunk_size) for start in range(0, len(inputs), chunk_size)]
    for i, rows in enumerate(chunks):
        left = gradients(inputs[rows], targets[rows])
        gram[rows, rows] = _products(left, left)
        for columns in chunks[i + 1 :]:
            gram[rows, columns] = _products(left, gradients(inputs[columns], targets[columns]))
    return _cosines(gram)


def pairwise_similarity(inputs: Tensor) -> Tensor:
    """Return the cosine between every two raw inputs, the paper's *Sim*, to compare with congruency.

    ``Sim_ij = <x_i, x_j> / (|x_i| |x_j|)`` over all elements of a sample. Note that images with values in [0, 1] are
    all similar; values near 0, as in the paper, require normalized (zero-mean) images.

    Args:
        inputs: n samples, shape (n, ...), of any real dtype.

    Returns:
        (n, n), float64, symmetric, in [-1, 1], with 1 on the diagonal; nan in row and column of a sample that is 0.

    Examples:
        >>> congruency.pairwise_similarity(torch.tensor([[1.0, 0.0], [-3.0, 0.0], [0.0, 2.0]]))
        tensor([[ 1., -1.,  0.],
                [-1.,  1.,  0.],
                [ 0.,  0.,  1.]], dtype=torch.float64)
    """
    if not isinstance(inputs, Tensor):
        raise TypeError(f"inputs must be a tensor, got a {type(inputs).__name__}")
    if inputs.ndim < 2 or inputs[0:1].numel() == 0 < len(inputs):
        raise ValueError(f"inputs must be samples of shape (n, ...) with elements, got {tuple(inputs.shape)}")
    flat = inputs.to(torch.float64).flatten(1)
    if len(flat) == 0:
        return flat.new_zeros(0, 0)
    largest = flat.abs().amax(1, keepdim=True)
    flat = flat / largest.where(largest > 0, 1.0)  # avoids over- and underflow of squares
    return _cosines(flat @ flat.T)


def _cosines(gram: Tensor) -> Tensor:
    """Return cosines from the upper triangle of a Gram matrix; nan where a norm is 0."""
    norms = gram.diagonal().sqrt()
    upper = (gram / norms[:, None] / norms).clamp(-1.0, 1.0).triu(1)
    return upper + upper.T + torch.diag(norms / norms)


def _products(left: Gradients, right: Gradients) -> Tensor:
    """Return the inner products <g_i, g_j> in float64, computed by slices of the parameters."""
    total: Tensor | float = 0.0
    for name in left:
        ours, theirs = (torch.split(side[name].flatten(1), _COLUMNS, 1) for side in (left, right))
        for a, b in zip(ours, theirs, strict=True):
            total = total + a.to(torch.float64) @ b.to(torch.float64).T
    assert isinstance(total, Tensor)
    return total


def _per_sample_gradients(model: nn.Module, loss: Loss, chosen: Gradients) -> Callable[[Tensor, Tensor], Gradients]:
    """Return a function from inputs (c, ...) and targets (c, ...) to gradients by name, (c, *shape) each."""

    def sample_loss(parameters: Gradients, sample: Tensor, target: Tensor) -> Tensor:
        output = functional_call(model, parameters, (sample.unsqueeze(0),))
        return loss(output, target.unsqueeze(0)).sum()  # for losses that do not reduce

    batched = vmap(grad(sample_loss), in_dims=(None, 0, 0), randomness="error")

    def gradients(inputs: Tensor, targets: Tensor) -> Gradients:
        try:
            with torch.no_grad():  # other parameters must not record a graph
                result: Gradients = batched(chosen, inputs, targets)
        except RuntimeError as error:
            if "random" not in str(error):
                raise
            raise RuntimeError(
                "the model draws random numbers (dropout, stochastic depth), so a sample's gradient differs from call "
                "to call; call model.eval() first"
            ) from error
        return result

    return gradients


def _chosen(model: nn.Module, params: Iterable[Tensor | str] | None) -> Gradients:
    """Return the selected parameters by their names in the unwrapped model."""
    owned = dict(unwrap(model).named_parameters())
    if params is None:
        wanted = {id(parameter) for parameter in owned.values() if parameter.requires_grad}
    elif isinstance(params, str | Tensor | nn.Module):
        raise TypeError(
            f"params must be an iterable of parameters or names, got {type(params).__name__}; "
            "give [it], or .parameters() of a module"
        )
    else:
        wanted = {id(parameter) for parameter in _resolved(params, model)}
    if not wanted:
        raise ValueError("no parameters selected: params is empty, or the model has none that require a gradient")
    return {name: parameter.detach() for name, parameter in owned.items() if id(parameter) in wanted}


def _resolved(params: Iterable[Tensor | str], model: nn.Module) -> Iterator[Tensor]:
    # accept all names: of tied parameters, and with the prefix of a wrapped model
    known = {
        name: parameter
        for names in (unwrap(model), model)
        for name, parameter in names.named_parameters(remove_duplicate=False)
    }
    identities = {id(parameter) for parameter in known.values()}
    for param in params:
        parameter = known.get(param) if isinstance(param, str) else param
        if parameter is None or id(parameter) not in identities:
            what = repr(param) if isinstance(param, str) else f"a tensor of shape {tuple(param.shape)}"
            raise ValueError(f"params holds {what}, which is not a parameter of {type(model).__name__}")
        yield parameter


def _refuse_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if not isinstance(module, _BatchNorm):
            continue
        where = f"{type(module).__name__} {name!r}" if name else type(module).__name__
        if module.running_mean is None:
            raise RuntimeError(
                f"{where} keeps no running statistics (track_running_stats=False) and always normalises over the "
                "batch, so no sample has a gradient of its own; use a layer with running statistics"
            )
        if module.training:
            raise RuntimeError(
                f"{where} is in training mode and normalises over the batch, so no sample has a gradient of its own; "
                "call model.eval() first"
            )
