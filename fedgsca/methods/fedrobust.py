"""FedRobust, also FLRA (Reisizadeh et al., NeurIPS 2020).

Train against the worst affine distortion of each site's inputs:

    min_w  sum_k n_k/N  max_{Lambda_k, delta_k}  E CE(w; Lambda_k x + delta_k, y)
                                                 - a ||Lambda_k - I||_F^2 - b ||delta_k||^2

    site, per mini-batch:  one backward pass gives the gradients of w, Lambda_k and delta_k;
                           w descends; Lambda_k and delta_k ascend and are projected to
                           ||Lambda - I|| <= r_L, ||delta|| <= r_d
    server:                w <- sum_k (n_k / N) w_k

The map is the site's own: it stays in its memory, continues in the next round, and is never sent.
Models are evaluated on plain inputs. FedRobust is made for sites whose scanners differ, not for
wrong labels; a result near FedAvg is what its paper would predict.

Family of maps. The published code has a full d x d matrix on flattened images of at most 3,072
numbers; at 224 x 224 x 3 it would have 2e10 entries. Here: images get a 3 x 3 matrix on the colour
vector of every pixel and three offsets (contrast, tint, brightness: the paper's own motivation);
frozen features get a gain and an offset per entry, the diagonal of the full matrix.

Numbers. The code sums the loss over a batch of 50, so its constants are divided (penalties) or
multiplied (steps) by 50, and scaled to the size s of the distortion: penalty 0.08 / s^2, step
1.25 s^2, radius s, with s = 0.2 for three offsets. D standardised features have the norm sqrt(D),
and s grows with it: `feature_unit` sqrt(D) times as large. The code's ratio of s to the norm on
CIFAR-10, 0.036, would be 0.18, with which a linear head on 1,280 features, which no layer separates
from the adversary, is unstable; the default is half of it.

Code and paper disagree twice. (1) The notebooks make one pooled gradient step per iteration, the
paper averages after tau local steps: ours are the local epochs of the common protocol. (2) The
paper averages sites equally: switch `weights`, default by samples as for all methods here (with
equal sites it is the same).

`official`: the full matrix with a full offset (`family`), the code's constants without a projection
during training, and equal weights. Only inputs of at most 4,096 numbers have a full matrix here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field

from fedgsca.errors import ConfigError
from fedgsca.methods.base import (
    Card,
    Lateness,
    Method,
    NonNegative,
    Positive,
    PublishedOptions,
    ServerState,
    average_models,
    register,
)
from fedgsca.methods.label_loss import LabelLoss
from fedgsca.methods.site import Site
from fedgsca.methods.train import Batch, train
from fedgsca.support.lazy_torch import F, Tensor, nn, no_grad, torch
from fedgsca.wire import Arrays, Payload, Update

# the largest input, in numbers, that `family = "full"` accepts: the matrix has its square
MAX_FULL = 4096
# no projection
NO_RADIUS = 1e9


class FedRobustOptions(PublishedOptions):
    """Options of FedRobust."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {
        "family": "full",
        "feature_unit": 0.18,
        "matrix_radius": NO_RADIUS,
        "shift_radius": NO_RADIUS,
        "weights": "equal",
    }

    family: Literal["small", "full"] = Field(
        default="small",
        description="maps: per colour or per feature, or a full matrix on all numbers of an input "
        f"(official; at most {MAX_FULL})",
    )
    matrix_penalty: NonNegative = Field(
        default=2.0,
        description="a, on ||Lambda - I||^2; official 100 on a sum over 50 samples = 2 on a mean",
    )
    matrix_lr: NonNegative = Field(
        default=0.05,
        description="ascent step of Lambda; official 1e-3 on a sum over 50 = 0.05 on a mean",
    )
    matrix_radius: NonNegative = Field(
        default=0.4,
        description="largest ||Lambda - I||; official 0.4 in a figure, 5 to 10 in the notebooks",
    )
    shift_penalty: NonNegative = Field(
        default=2.0,
        description="b, on ||delta||^2; official 4 on a sum over 50 = 0.08, over s^2 with s = 0.2",
    )
    shift_lr: NonNegative = Field(
        default=0.05,
        description="ascent step of delta; official 0.025 on a sum over 50 = 1.25, "
        "times s^2 with s = 0.2",
    )
    shift_radius: NonNegative = Field(
        default=0.2,
        description="s, largest ||delta|| in normalised units; "
        "official 1 on entire images (norm about 28)",
    )
    feature_unit: Positive = Field(
        default=0.09,
        description="frozen features: distortions are this times sqrt(D) times as large; "
        "official ratio 0.036 / 0.2 = 0.18",
    )
    weights: Literal["samples", "equal"] = Field(
        default="samples", description="average by n_k (here), or all sites equally (official)"
    )


@dataclass(frozen=True)
class AscentRule:
    """How one variable of the map moves: its penalty, its step size, and its largest norm."""

    variable: Tensor
    penalty: float
    step: float
    radius: float


class Affine:
    """x -> Lambda x + delta for all inputs of one site.

    `matrix` = Lambda - I is (3, 3) for images and (D,) for features; `shift` = delta is (3,) or
    (D,). With family "full" they are (d, d) and (d,) for inputs of d numbers. `memory` are the two
    of the last round; empty: the identity.
    """

    def __init__(self, options: FedRobustOptions, site: Site, memory: Arrays) -> None:
        self.is_full = options.family == "full"
        shape = site.samples.inputs.shape[1:]
        width = math.prod(shape) if self.is_full else int(shape[-1])
        self.are_images = site.samples.are_images
        unit = 1.0
        if self.is_full or not self.are_images:
            unit = options.feature_unit * width**0.5
        # a full matrix is relative to the input, whatever its size
        matrix_unit = 1.0 if self.is_full else unit
        if self.is_full:
            _check_width(width)
        is_square = self.are_images or self.is_full
        matrix = torch.zeros((width, width) if is_square else (width,))
        shift = torch.zeros((width,))
        if memory:
            matrix = torch.from_numpy(memory["matrix"])
            shift = torch.from_numpy(memory["shift"])
        self.matrix = matrix.to(site.device).requires_grad_()
        self.shift = shift.to(site.device).requires_grad_()
        # a distortion `unit` times as large costs the same and is reached in as many steps
        self.rules = (
            AscentRule(
                self.matrix,
                options.matrix_penalty / matrix_unit**2,
                options.matrix_lr * matrix_unit**2,
                options.matrix_radius * matrix_unit,
            ),
            AscentRule(
                self.shift,
                options.shift_penalty / unit**2,
                options.shift_lr * unit**2,
                options.shift_radius * unit,
            ),
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Images (b, 3, H, W) or features (b, D) -> the same shape."""
        if self.is_full:
            flat = x.flatten(start_dim=1)
            return (flat + flat @ self.matrix.T + self.shift).view(x.shape)
        if not self.are_images:
            return x * (1.0 + self.matrix) + self.shift
        full = torch.eye(len(self.shift), device=x.device) + self.matrix
        # a 1 x 1 convolution keeps the channels-last layout
        return F.conv2d(x, full[:, :, None, None], self.shift)

    @no_grad
    def ascend(self) -> None:
        """One step along the gradients that the last backward pass left.

        Those of the penalties, 2 a (Lambda - I) and 2 b delta, are subtracted.
        """
        for rule in self.rules:
            gradient = rule.variable.grad
            if gradient is None:
                continue
            value = rule.variable * (1.0 - 2.0 * rule.penalty * rule.step) + gradient * rule.step
            rule.variable.grad = None
            norm = float(value.norm())
            if not math.isfinite(norm):
                continue  # a diverged model must not spoil the map for good
            if norm > rule.radius:
                value = value * (rule.radius / norm)
            rule.variable.copy_(value)


def _check_width(width: int) -> None:
    if width > MAX_FULL:
        raise ConfigError(
            "method.input-too-large",
            f"a full matrix on inputs of {width} numbers has {width**2} entries, which is too many",
            fix="use --set fedrobust.family=small, frozen features, or images of at most 36 pixels",
        )


@register
class FedRobust(Method):
    """See the module docstring."""

    name = "fedrobust"
    card = Card(
        title="FedRobust",
        paper="Reisizadeh et al., Robust Federated Learning: The Case of Affine Distribution "
        "Shifts, NeurIPS 2020",
        order=3,
        in_paper=True,
        passes=3.5,
    )
    takes_loss = True
    late = Lateness("the server averages models; the map stays at the site", is_tolerated=True)
    Options = FedRobustOptions
    options: FedRobustOptions

    # ---- server ----

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The mean of the models, weighted by n_k or equally."""
        if self.options.weights == "equal":
            return average_models(state, updates, lambda update: float(update.num_samples > 0))
        return average_models(state, updates)

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """E epochs of SGD on distorted inputs; the map of the site moves along."""
        site.load(payload.weights)
        adversary = Affine(self.options, site, site.recall(payload.round))
        loss = LabelLoss(site, payload.round)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            # after the previous batch: w and the map move from the same point, by one backward pass
            adversary.ascend()
            return loss(model, replace(batch, x=adversary(batch.x)))

        train(site, payload.round, objective)
        loss.save()
        adversary.ascend()
        site.remember(
            payload.round,
            matrix=adversary.matrix.detach().cpu().numpy(),
            shift=adversary.shift.detach().cpu().numpy(),
        )
        return Update(site.name, site.num_samples, site.weights())
